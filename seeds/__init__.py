"""Operators, seed kernels and suites: one folder per kernel family."""
