"""Programs in the style of published examples of JAX, each compared with JAX.

    python -m tests.interop.stablehlo.programs [NAME ...]

imports each by `tw.from_jax`, runs it on `cpu`, compares the results and prints a table.
"""
