"""Grouped FP8 products over ragged groups: forward, gradient of rows, gradient of weights (TPU)."""
