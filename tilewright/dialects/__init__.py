"""The dialects of all phases."""

from tilewright.dialects.imports import ask_for_dialects_last

ask_for_dialects_last()
