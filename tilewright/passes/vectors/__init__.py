"""The execution model of CPUs: loop nests of vector instructions, packed operands, parallel regions."""
