"""Takes a function that launches Triton kernels in: records one call, and writes a kernel module."""
