"""Layout inference: the constraints of tile operations, their costs, and the explanation of the solution."""
