"""Program files for grids of cores."""
