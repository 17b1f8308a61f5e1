"""The command line: `tilewright VERB ...`. One file per verb; heavy imports happen inside verbs."""

from tilewright.cli.application import main

__all__ = ["main"]
