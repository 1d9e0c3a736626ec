"""tilewright evolves GPU and TPU kernels.

The folders beside this file hold the code by what it is for; in a checkout they are links to those at its top, so that
one name is installed and the tree stays flat to read.
"""
