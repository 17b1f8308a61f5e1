"""Process replay: whether two versions of the compiler generate the same code for a fixed corpus of programs."""
