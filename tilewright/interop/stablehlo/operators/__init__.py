"""The rules of operations, by what they do."""
