"""Kernels of ours that a module is given for what torch would do: copies of arguments and of views."""

COPY = "copy_argument"
COPY_TEXT = """@triton.jit
def copy_argument(source, target, size, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + at, tl.load(source + at, mask=at < size), mask=at < size)"""

PACK = "pack_view"
PACK_TEXT = """@triton.jit
def pack_view(source, target, size, n1, n2, n3, s0, s1, s2, s3, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    last, rest = at % n3, at // n3
    third, rest = rest % n2, rest // n2
    second, first = rest % n1, rest // n1
    place = first * s0 + second * s1 + third * s2 + last * s3
    tl.store(target + at, tl.load(source + place, mask=inside), mask=inside)"""
