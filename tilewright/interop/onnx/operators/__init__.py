"""The rules of the operators, grouped as the array functions are."""
