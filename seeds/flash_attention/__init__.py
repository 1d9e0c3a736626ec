"""Attention over whole sequences, forward: causal or full, with grouped heads (TPU)."""
