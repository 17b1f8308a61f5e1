"""Random array programs, an oracle with error bounds, and planted miscompiles that it must find."""
