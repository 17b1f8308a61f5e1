"""Checks of the documentation and of the words that the project is written in."""
