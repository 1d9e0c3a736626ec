"""What torch computes between kernels in CUDA C++, as kernels of ours: elementwise functions, reductions of an axis.

Their expressions are those of the kernels in Triton, whose functions have a counterpart each. No number here has two
digits: sizes that a text names keep their value.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tilewright.workers.intake.triton.torch_kernels import REDUCTIONS, computed_type
from tilewright.workers.intake.triton.trace import Var, Work

TYPES = {
    torch.float32: "float",
    torch.float64: "double",
    torch.int32: "int",
    torch.int64: "long long",
    torch.bool: "bool",
}
THREADS = "4 * 8 * 8"
_COMPUTED = {"tl.float32": ("float", "fp32"), "tl.float64": ("double", "fp64"), "tl.int64": ("long long", "i64")}
_JOINED = {"amax": "torch_maximum(total, part)", "amin": "torch_minimum(total, part)"}
_START = {"amax": "-torch_infinity()", "amin": "torch_infinity()"}
FUNCTIONS = """
__device__ inline float torch_infinity() { return __int_as_float(0x7f800000); }
template <typename A, typename B> __device__ auto torch_where(bool c, A a, B b) { return c ? a : decltype(a + b)(b); }
template <typename A, typename B> __device__ auto torch_maximum(A a, B b) { return torch_where(a != a || a > b, a, b); }
template <typename A, typename B> __device__ auto torch_minimum(A a, B b) { return torch_where(a != a || a < b, a, b); }
template <typename A> __device__ auto torch_sigmoid(A a) { return A(1) / (A(1) + exp(-a)); }
template <typename A> __device__ auto torch_abs(A a) { return a < 0 ? -a : a; }
"""
_OWN = ("maximum", "minimum", "where", "sigmoid", "abs")


def _named(found: re.Match[str]) -> str:
    return f"torch_{found[1]}(" if found[1] in _OWN else f"{found[1]}("


def _product(sizes: Sequence[str]) -> str:
    """The text of how many elements axes of these sizes have."""
    return " * ".join(f"({size})" for size in sizes) or "1"


def kernel_of(work: Work, name: str, axes: Callable[[Var], Sequence[str]]) -> tuple[str, str, list[Any]] | None:
    """The text of a kernel, its grid, and its arguments: Vars, and (type, number or text) pairs. ``axes``: the sizes of
    a Var as text. None where no kernel says it."""
    tensors, sizes = (*work.reads, work.target), axes(work.target)
    plain = all(v.tensor.dtype in TYPES and v.tensor.is_contiguous() for v in tensors)
    if not plain or work.asked[0] == "cumsum":
        return None
    first = [f"const {TYPES[v.tensor.dtype]}* x{n}_ptr" for n, v in enumerate(work.reads)]
    first.append(f"{TYPES[work.target.tensor.dtype]}* target")
    if (what := work.asked[0]) in REDUCTIONS:
        number, _ = _COMPUTED[computed_type(work.reads, ()) or ""]
        source, join, start = axes(work.reads[0]), _JOINED.get(what, "total + part"), _START.get(what, "0")
        count, inner = source[work.asked[1]], _product(source[work.asked[1] + 1 :])
        text = f"""
__global__ void {name}({", ".join(first)}, long long count, long long inner) {{
    __shared__ {number} parts[{THREADS}];
    long long begin = blockIdx.x / inner * count * inner + blockIdx.x % inner;
    {number} total = {start};
    for (long long k = threadIdx.x; k < count; k += blockDim.x) {{
        {number} part = x0_ptr[begin + k * inner];
        total = {join};
    }}
    parts[threadIdx.x] = total;
    for (int half = blockDim.x / 2; half > 0; half /= 2) {{
        __syncthreads();
        if (threadIdx.x < half) {{
            {number} part = parts[threadIdx.x + half];
            total = parts[threadIdx.x];
            parts[threadIdx.x] = {join};
        }}
    }}
    if (threadIdx.x == 0) target[blockIdx.x] = parts[0]{" / count" * (what == "mean")};
}}
"""
        return text, _product(sizes), [*work.reads, work.target, ("i64", count), ("i64", inner)]
    expression, values = work.asked
    number, kind = _COMPUTED[computed_type(work.reads, values) or ""]
    scalars = [(kind, value) for value in values if not isinstance(value, Var)]
    value = re.sub(r"tl\.(\w+)\(", _named, expression)
    value, rank = value.replace('float("inf")', "torch_infinity()").replace("//", "/"), len(sizes)
    inside, given = "", [*work.reads, work.target, *scalars, *(("i64", size) for size in sizes)]
    for axis in reversed(range(rank)):
        inside += f"    long long i{axis} = rest % n{axis}; rest /= n{axis};\n"
    steps: list[str] = []
    for n, var in enumerate(work.reads):
        own, lead = axes(var), rank - var.tensor.dim()
        for axis, size in enumerate(var.tensor.shape):
            if size != 1:
                given.append(("i64", _product(own[axis + 1 :])))
                steps.append(f"x{n}_{axis + lead}")
        at = " + ".join(f"i{s[len(f'x{n}_') :]} * {s}" for s in steps if s.startswith(f"x{n}_")) or "0"
        inside += f"    {number} x{n} = x{n}_ptr[{at}];\n"
    head = [*first, *(f"{number} c{n}" for n in range(len(scalars)))]
    head += [f"long long {s}" for s in (*(f"n{axis}" for axis in range(rank)), *steps)]
    text = f"""
__global__ void {name}({", ".join(head)}) {{
    long long at = blockIdx.x * (long long)blockDim.x + threadIdx.x, rest = at;
{inside}    if (rest == 0) target[at] = {value};
}}
"""
    return text, f"-(-({_product(sizes)}) // ({THREADS}))", given
