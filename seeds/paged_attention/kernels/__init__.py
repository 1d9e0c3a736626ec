"""Dialect modules of the family: read as text, never imported by the search."""
