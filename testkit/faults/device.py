"""Kernels that hang a device, write to an illegal address or ask for more memory than there is."""

_HEAD = """
import torch
import triton
import triton.language as tl

SPACE = {"blocks": (1,)}
DEFAULTS = {"blocks": 1}
CONSTRAINTS = {}
"""


_LAUNCH = """

def launch(inputs, params):
    out = torch.empty((inputs["a_q"].shape[0], inputs["b_q"].shape[0]), dtype=torch.bfloat16)
    faulty_kernel[(params["blocks"],)](inputs["a_s"], out)
    return (out,)
"""


HANGS = f'''"""Waits for a positive scale to become zero, for ever."""
{_HEAD}

@triton.jit
def faulty_kernel(s_ptr, c_ptr):
    going = tl.load(s_ptr, volatile=True)
    while going > 0:
        going = tl.load(s_ptr, volatile=True)
    tl.store(c_ptr, going.to(tl.bfloat16))
{_LAUNCH}'''


ILLEGAL = f'''"""Writes 2 TB behind the output."""
{_HEAD}

@triton.jit
def faulty_kernel(s_ptr, c_ptr):
    tl.store(c_ptr + 1099511627776, tl.load(s_ptr).to(tl.bfloat16))
{_LAUNCH}'''


OUT_OF_MEMORY = f'''"""Asks for 4 TB of scratch."""
{_HEAD}

@triton.jit
def faulty_kernel(s_ptr, c_ptr):
    tl.store(c_ptr, tl.load(s_ptr).to(tl.bfloat16))


def launch(inputs, params):
    scratch = torch.empty((1099511627776,), dtype=torch.float32)
    out = torch.empty((inputs["a_q"].shape[0], inputs["b_q"].shape[0]), dtype=torch.bfloat16)
    faulty_kernel[(params["blocks"],)](scratch, out)
    return (out,)
'''


FAULTS = {"hangs": HANGS, "illegal address": ILLEGAL, "out of memory": OUT_OF_MEMORY}
