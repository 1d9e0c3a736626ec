"""Reads kernels in CUDA C++ in: raw device code, and host code of torch that launches kernels."""
