"""LLVM IR that several targets emit: values and vectors, conversions, mathematical functions."""
