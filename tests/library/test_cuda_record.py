"""What a launch in CUDA C++ may say, what becomes of it in a plan, and what is read of the code."""

import dataclasses

import pytest

from testkit.exploits.cuda import CODE, HOST, PARAMS
from tilewright.fitness import dialect
from tilewright.library import cuda_record, plan_shelf
from tilewright.library.nvrtc import CompileError
from tilewright.library.plans.format import Fill, Launch, NotRecorded, Plan, PlanError, Pointer, Tensor, TensorMap
from tilewright.seeds.inlined import with_device_code
from tilewright.workers.device import machine_code

pytest.importorskip("cuda.bindings.nvrtc")

M, N, K = 200, 384, 640
INPUTS = (
    Tensor("a_q", "float8_e4m3fn", (M, K)),
    Tensor("a_s", "float32", (K // 128, M)),
    Tensor("b_q", "float8_e4m3fn", (N, K)),
    Tensor("b_s", "float32", (N // 128, K // 128)),
)
OUTPUTS = (Tensor("c", "bfloat16", (M, N)),)


def plan(code=CODE, **changes):
    """Of the plain product; ``changes`` to what launch returns, or to its step."""
    space = {}
    exec(HOST, space)
    launch = space["launch"]

    def changed(inputs, params):
        answer = launch(inputs, params)
        step = answer["steps"][0]
        of_step = {k: v for k, v in changes.items() if k not in ("steps", "scratch", "defines", "options")}
        of_launch = {k: v for k, v in changes.items() if k not in of_step}
        return {**answer, "steps": ({**step, **of_step},), **of_launch}

    return cuda_record.record({"CUDA": code, "launch": changed}, PARAMS, INPUTS, OUTPUTS, 90)


def test_a_launch_becomes_a_plan_with_a_block_of_two_dimensions():
    made = plan(scratch={"work": ("float32", (4, 8))}, defines={"UNUSED": 3})
    (launch,) = made.steps
    assert (launch.symbol, launch.grid, launch.warps) == ("product", (12, 25, 1), 8)
    assert launch.threads == (32, 8, 1)
    assert made.buffers == (M * N * 2, 128) and launch.arguments[4] == Pointer(4, 0)
    again = Plan.from_bytes(made.to_bytes())
    assert again.digest == made.digest and again.steps == made.steps
    row = dataclasses.replace(made, steps=(dataclasses.replace(launch, block=()),))
    assert b'"block"' not in row.to_bytes() and row.digest != made.digest
    with pytest.raises(PlanError, match="block"):
        dataclasses.replace(made, steps=(dataclasses.replace(launch, block=(32, 9, 1)),))


def test_another_shape_takes_the_code_of_one_that_was_compiled(monkeypatch):
    space: dict = {}
    exec(HOST, space)
    module = {"CUDA": CODE, "launch": space["launch"]}
    first = plan()
    pack = plan_shelf.Pack(plan_shelf.packed({("k", (M, N, K)): first}, first.toolchain), "pack")
    a_q, a_s = Tensor("a_q", "float8_e4m3fn", (M + 7, K)), Tensor("a_s", "float32", (K // 128, M + 7))
    inputs = (a_q, a_s, *INPUTS[2:])
    outputs = (Tensor("c", "bfloat16", (M + 7, N)),)
    monkeypatch.setattr(cuda_record.nvrtc, "compiled", lambda *_: pytest.fail("compiled again"))
    other = cuda_record.record(module, PARAMS, inputs, outputs, 90, pack.compiled)
    assert other.codes == first.codes and other.outputs[0].shape == (M + 7, N)
    assert pack.compiled("another key") is None


def test_tensor_maps_zeros_and_templates():
    code = """struct alignas(64) Map { unsigned long long word[16]; };
template <int V> __global__ void first(const __grid_constant__ Map map, float *work) { work[threadIdx.x] = V; }
"""
    described = {"map": "a_q", "box": (64, 128), "swizzle": 128}
    arguments = (described, ("work", 16))
    step = {"kernel": "first<7>", "grid": 2, "block": 64, "cluster": 2, "arguments": arguments}
    made = plan(code, steps=({"zero": "work"}, step), scratch={"work": ("float32", (128,))})
    zero, launch = made.steps
    assert zero == Fill(5, 0, 512, 0, 1) and isinstance(launch, Launch)
    assert launch.arguments == (TensorMap(0, 0, 0, (M, K), (K,), (64, 128), 3, False), Pointer(5, 16))
    assert (launch.grid, launch.cluster, launch.block) == ((1, 1, 1), 2, ()) and "first" in launch.symbol


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"kernel": "absent"}, CompileError, "absent"),
        ({"code": CODE.replace("float sum = 0;", "float sum = nothing;")}, CompileError, 'line 15: .*"nothing"'),
        ({"grid": (0, 1, 1)}, NotRecorded, "grid"),
        ({"block": (32, 4, 1)}, PlanError, "compiled for blocks of 256|threads"),
        ({"cluster": 5}, NotRecorded, "clusters of 5"),
        ({"arguments": ("a_q",)}, PlanError, "takes 8 arguments"),
        ({"arguments": ("nobody",)}, NotRecorded, "names no tensor"),
        ({"stream": 1}, NotRecorded, "unknown"),
        ({"options": {"std": 11}}, NotRecorded, "std is 17 or 20"),
        ({"defines": {"X": "1); evil("}}, NotRecorded, "neither number nor name"),
        ({"scratch": {"c": ("float32", (1,))}}, NotRecorded, "one name"),
        ({"scratch": {"w": ("complex", (1,))}}, NotRecorded, "no \\(dtype"),
        ({"shared": 1 << 20}, PlanError, "shared memory"),
    ],
)
def test_what_is_no_launch_is_refused_in_a_sentence(changes, error, message):
    if changes.get("block") == (32, 4, 1):
        code = CODE.replace("__launch_bounds__(TX * TY)", "__block_size__((256, 1, 1))")
        changes = {**changes, "code": code}
    with pytest.raises(error, match=message):
        plan(**changes)


def test_facts_of_the_machine_code():
    spilling = CODE.replace("__launch_bounds__(TX * TY)", "__launch_bounds__(256, 8)").replace(
        "float sum = 0;", "float v[64]; for (int i = 0; i < 64; i++) v[i] = as[i * M]; float sum = v[K & 63];"
    )
    plain, spilled = (machine_code.facts(plan(code).codes[0])["product"] for code in (CODE, spilling))
    assert 0 < plain["registers"] <= 64 and plain["spills"] == 0 and plain["matrix"] == {}
    assert spilled["spills"] > 0 and 0 <= plain["yields"] <= 1 and plain["stores"] >= 1
    with pytest.raises(machine_code.ReadsClock):
        machine_code.facts(plan(CODE.replace("rounded(sum)", "rounded(sum + clock())")).codes[0])


def test_the_dialect_of_a_module_in_cuda():
    source = with_device_code(HOST, CODE + "//" + "x" * 5000)
    assert dialect.is_cuda(source) and dialect.check(source, entry="launch") == []
    assert "CUDA C++ on a target" in str(dialect.check(source)[0])
    with pytest.raises(ImportError):
        with_device_code(HOST, '"""')
