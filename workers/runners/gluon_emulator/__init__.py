"""Gluon for Hopper on a CPU: one program at a time, in NumPy, with its races and deadlocks found.

``install`` puts the emulated language in the place of Triton's in this process. Partitions of ``warp_specialize`` run
one at a time in an order drawn at random; what they order by barriers is followed by vector clocks, so a stage read
before its copy has landed, or overwritten while it may still be read, is found whatever the order was.
"""
