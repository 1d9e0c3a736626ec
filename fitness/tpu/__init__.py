"""Modelled TPU targets: what libtpu's simulator dumps, read into cycles, copies, a calibrated time and a diagnosis."""
