"""Programs over sizes that are known when they are called: one program for each bucket of sizes, with masks.

A function is traced as usual, with plain integers for its sizes, at the largest sizes of a bucket and at others.
`family` lays the traces side by side: what differs between them depends on the sizes. `padded` makes of them one
program of the largest sizes, which takes the real sizes, and whatever else differs, as arguments, and masks what is
beyond. `plan` takes those arguments from a trace at the sizes of a call, and with it proves that the program is the
right one: a function that does something else at these sizes has another trace.
"""
