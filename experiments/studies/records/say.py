"""How experiments talk: one line at a time, at once, so that a run that is cut off has said what it knew."""

import sys


def say(text: str) -> None:
    """Write a line to the standard output and flush it."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
