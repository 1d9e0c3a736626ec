"""Errors a person can act on. The CLI prints them as one sentence and exits with code 2."""


class UserError(Exception):
    """Bad input or a missing part: one sentence that names the key or cause and what is allowed."""


class JournalError(UserError):
    """The journal cannot be opened, is locked by a living campaign, or is damaged."""


class SeedFailed(UserError):
    """A seed kernel does not pass: the campaign has no result to keep."""
