"""The process that runs a user's program: records its step, searches configurations, proves replacements."""

ENDED = "the process ended while it was searched"
"""Noted of a launch before its search, and left there where nothing was found."""
