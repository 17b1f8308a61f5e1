"""Emission of NVIDIA's MMA and copy instructions, a module for each family or generation."""
