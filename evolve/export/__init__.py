"""Promoted operators and winners of tuned functions, written for other programs."""
