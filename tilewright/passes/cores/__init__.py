"""The execution model of grids: cores with reader, compute and writer threads, and queues between them."""
