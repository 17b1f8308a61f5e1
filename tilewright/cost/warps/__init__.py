"""Cost model of GPUs."""
