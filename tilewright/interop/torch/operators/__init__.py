"""The rules, by kind of operator."""
