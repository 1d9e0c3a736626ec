"""Raw kernels in CUDA C++: what is read of their text, which numbers are parameters, what is refused."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("tree_sitter_cuda")
pytest.importorskip("cuda.bindings.nvrtc")

from tilewright.library import cuda_record
from tilewright.workers.intake.child_program import Refusal
from tilewright.workers.intake.cuda.device_code import DeviceCode
from tilewright.workers.intake.cuda.knobs import found_knobs, scheduled
from tilewright.workers.intake.cuda.program import Intake, launched
from tilewright.workers.intake.cuda.raw_kernel import RawKernel

KERNEL = """#include <cuda_runtime.h>
#include <cstdint>
#define BLOCK 128
constexpr int ITEMS = 4;
static const float HALF = 0.5f;
int launch_it(float *x) { return 1; }
template <int BY>
__global__ void __launch_bounds__(BLOCK, 2) scaled(const float *__restrict__ x, float *y, float factor, int64_t n) {
    int at = blockIdx.x * BLOCK * ITEMS + threadIdx.x;
#pragma unroll 2
    for (int k = 0; k < ITEMS; k++, at += BLOCK)
        if (at < n) y[at] = x[at] * factor * HALF * BY + (x[at] > FLT_MAX);
}
"""
WRITES = "__global__ void k(float *x, float *y, float f, int n) { x[0] = f; y[0] = n; }"
CALL = "f32[96, 200], f32[96, 200], 3.0, 19200"
LAUNCH = {"grid": "cdiv(n, BLOCK * ITEMS)", "block": "BLOCK"}
PLAIN = {"grid": "96", "block": "256"}
REFERENCE = "def ref(x, factor, n):\n    return x * factor\n"


def request(folder, code=KERNEL, call=CALL, launch=None, name="scaled<2>"):
    (folder / "k.cu").write_text(code)
    (folder / "ref.py").write_text(REFERENCE)
    part = {"multiprocessors": 132, "smem_bytes": 232448, "capability": 90}
    asked = {"path": f"{folder}/k.cu", "function": name, "reference": f"{folder}/ref.py:ref", "calls": [call]}
    return {**asked, "launch": LAUNCH if launch is None else launch, "part": part}


def test_a_raw_kernel_becomes_a_module_that_compiles(tmp_path):
    answer = Intake(request(tmp_path)).answer()
    assert (
        answer["refusals"] == []
        and answer["call"] == "x, 3.0, 19200"
        and answer["calls"] == ["f32[96, 200], 3.0, 19200"]
    )
    assert [row[0] for row in (*answer["operands"], *answer["results"])] == ["x", "y"]
    assert set(answer["space"]) == {"BLOCK", "ITEMS", "RESIDENT_0", "UNROLL_1"}
    assert answer["space"]["BLOCK"][0] == 32 and answer["defaults"]["BLOCK"] == 128
    code = answer["source"].partition("CUDA = ")[2]
    assert (
        "launch_it" not in code
        and "#include" not in code
        and "#define HALF (0.5f)" in code
        and "int ITEMS" not in code
    )
    scope: dict = {}
    exec(answer["source"], scope)
    inputs, outputs = (
        [cuda_record.Tensor("x", "float32", (64, 50))],
        [cuda_record.Tensor("y", "float32", (64, 50))],
    )
    plan = cuda_record.record(scope, {**answer["defaults"], "ITEMS": 2}, inputs, outputs, 90)
    (step,) = plan.steps
    plain = RawKernel(request(tmp_path))
    assert plain.launch(plain.every, [{"M": 1, "N": 1}]) and plain.sized  # 19200 is no product of these
    assert step.grid == (13, 1, 1) and step.warps == 4 and step.arguments[3].bits == 3200


@pytest.mark.parametrize(
    ("code", "launch", "name", "why"),
    [
        (KERNEL, LAUNCH, "BLOCK", ""),
        (KERNEL.replace("if (at < n)", "if (at < n && k != ITEMS)"), LAUNCH, "ITEMS", "selects a branch by equality"),
        (KERNEL.replace("static", "const int B = ITEMS * 2;\nstatic"), LAUNCH, "ITEMS", "computed from it"),
        (KERNEL.replace("float *y", "float (*y)[ITEMS]"), LAUNCH, "ITEMS", "argument's type"),
        (KERNEL, {**LAUNCH, "grid": "n // 512 * ITEMS"}, "ITEMS", "part of the meaning"),
        (KERNEL, {"grid": "cdiv(n, THREADS)", "block": "256"}, "THREADS", "do not ask for blockDim"),
        (KERNEL, PLAIN, "ITEMS", "the grid does not follow it"),
        (KERNEL.replace("at < n", "at < n && k < 256"), {**PLAIN, "grid": "cdiv(n, THREADS)"}, "THREADS", "same"),
        (KERNEL.replace("at < n", "at < n + blockDim.x"), PLAIN, "THREADS", "the grid does not follow it"),
    ],
)  # fmt: skip
def test_numbers_with_a_meaning_are_no_parameters(tmp_path, code, launch, name, why):
    kernel = RawKernel(request(tmp_path, code, launch=launch))
    _, certain = scheduled(kernel.code.text, kernel.knobs)
    knobs, dims = {**kernel.knobs, **certain}, {"M": 96, "N": 200}
    named = [o.__class__(o.name, o.dtype, ("M", "N")) for o in kernel.every]
    text = kernel.launch(named, [dims])
    said = lambda changed: launched(text, kernel.own(named), dims, {**knobs, **changed})  # noqa: E731
    space, fixed = found_knobs(knobs, certain, kernel.code, said, lambda *_: True)
    assert why in next((row["why"] for row in fixed if row["name"] == name), "")
    assert (name in space) == (not why)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"name": "absent"}, "defines no absent, but kernels scaled"),
        ({"launch": {"grid": "1"}}, "give --grid and --block"),
        ({"code": WRITES, "name": "k"}, "writes all that it reads"),
        ({"call": "f32[96, 200], 3.0, 19200"}, "takes 4 arguments, those that it writes among them"),
        ({"call": "bf16[96, 200], f32[96, 200], 3.0, 19200"}, r"takes x as float, not bfloat16"),
        ({"launch": {"grid": "size", "block": "BLOCK"}}, "cannot be launched so: NameError: name 'size'"),
        ({"code": KERNEL.replace("at = b", "at = none + b")}, 'line 9: identifier "none" is undefined'),
    ],
)
def test_what_is_no_kernel_with_a_launch_is_refused(tmp_path, changes, said):
    with pytest.raises(Refusal, match=said):
        Intake(request(tmp_path, **changes)).answer()


def test_what_a_kernel_adds_to_is_zeroed_and_headers_are_kept():
    code = DeviceCode(
        "#include <cuda_fp16.h>\n#include <torch/extension.h>\n#include <cub/cub.cuh>\nusing namespace std;\n"
        'extern "C" __global__ void k(const __half *x, float *s) { atomicAdd(&s[0], __half2float(x[0])); }\n'
        "torch::Tensor f(torch::Tensor x) { k<<<1, 1>>>(nullptr, nullptr); return x; }\n"
    )
    assert (
        code.headers
        and code.text.startswith("#include <cuda_fp16.h>")
        and "torch" not in code.text
        and "cub" not in code.text
    )
    assert [(p.kind, p.const) for p in code.kernels["k"].parameters] == [("__half", True), ("float", False)]
