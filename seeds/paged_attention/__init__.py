"""Attention of one new token a sequence over keys and values kept in pages, sequences of any lengths (TPU)."""
