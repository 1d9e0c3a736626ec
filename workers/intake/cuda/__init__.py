"""Reads a kernel in CUDA C++: the device code of a file, and the launch that the command line describes."""
