"""The kernel that copies an argument which a function changes in place."""

COPY = "copy_argument"
COPY_TEXT = """@triton.jit
def copy_argument(source, target, size, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + at, tl.load(source + at, mask=at < size), mask=at < size)"""
