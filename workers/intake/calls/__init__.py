"""The text of a call, and what it says: dtypes, sizes, dimensions."""
