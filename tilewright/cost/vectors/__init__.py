"""Cost model of CPUs."""
