"""The search: what to try next, what to keep, what to remember."""
