"""Launches as data: what one call of a kernel's ``launch`` does to a device, recorded once and replayed at will.

A ``Plan`` (``format``) holds one shape's kernels as compiled code, their grids, and every argument by role: an address
in an input, an output or a scratch buffer, a tensor map over one, or a number. It is made by
``workers.runners.triton.recorder`` in a child that has neither device nor operands, checked in full wherever it is read
(``Plan.from_bytes``), and launched by ``replay``, which needs the CUDA driver's library and nothing else: no Triton, no
torch, no module of the kernel's author.

    plan = Plan.from_bytes(data)                  # PlanError unless every size, offset, symbol and argument is sound
    plan.inputs, plan.outputs, plan.buffers       # what to bring, what comes back, bytes to allocate for a call
    ready = Ready(plan, device=0)                 # code on the device; use it from any thread, on any stream
    ready([*inputs, *buffers], stream)            # addresses, inputs first, then buffers; returns once it is queued
    # output j lies at plan.outputs[j].offset of buffer plan.outputs[j].buffer

The modules here import one another relatively and only the standard library, so that the folder can be shipped alone.
"""
