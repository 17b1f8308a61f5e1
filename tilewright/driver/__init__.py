"""The compiler driver: from a traced program to an executable, through the compile cache."""
