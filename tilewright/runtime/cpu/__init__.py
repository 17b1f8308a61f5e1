"""Running programs on the CPU: native code, thread pool, features."""
