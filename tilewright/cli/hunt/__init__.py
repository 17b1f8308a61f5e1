"""`tilewright bench hunt`: the search for programs that another library runs faster.

program     a program of array operators as a value, which is JSON
operators   the operators, each in the words of every library
draw        random programs, of shapes and types that models have
worker      the process that measures programs
shrink      the smallest program that is as slow
causes      slow programs by what they have in common
command     the search, the report and the corpus of what was found
"""
