"""Emission of matmuls of a register block: by FMAs of vectors, by tiles of a matrix unit, and by parts of operands."""
