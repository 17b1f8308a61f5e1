"""Passes over array programs: rewriting, and fusing operations into the groups that become kernels."""
