"""Rules of the front ends, compared with their own frameworks on special values."""
