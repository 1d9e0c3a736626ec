"""Reading and rewriting of the Mosaic kernels in a compiled Pallas module."""
