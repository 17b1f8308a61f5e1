"""Cost model of grids of cores."""
