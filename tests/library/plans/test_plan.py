"""Launch plans: what is recorded without a device, what a reader refuses, and what a device makes of it."""

import dataclasses
import hashlib
import json
import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.fitness.targets import load_target
from tilewright.library.plans.cubin import CubinError, read_cubin
from tilewright.library.plans.format import (
    MAGIC,
    Fill,
    Launch,
    Output,
    Plan,
    PlanError,
    Pointer,
    Scalar,
    Tensor,
    TensorMap,
)
from tilewright.workers.child.ending import Ending
from tilewright.workers.child.frames import Frame
from tilewright.workers.child.session import JobLimits
from tilewright.workers.device.station import compile_children

pytest.importorskip("triton")

HEADER = """
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

@triton.jit
def add(x_ptr, y_ptr, n, f, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    tl.store(y_ptr + at, x + f, mask=at < n)

@triton.jit
def turn(x_map, y_map, BLOCK: tl.constexpr):
    tile = x_map.load([tl.program_id(0) * BLOCK, 0])
    y_map.store([tl.program_id(0) * BLOCK, 0], tile * 2)
"""

ONE = """
def launch(inputs, params):
    x = inputs["x"]
    y = torch.empty_like(x)
    add[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), 0.5, 256)
    return (y,)
"""

TWO = """
def launch(inputs, params):
    x = inputs["x"]
    kept = torch.zeros(x.shape, dtype=torch.float32)
    wide = torch.empty((x.shape[0] + 64, x.shape[1]), dtype=torch.float32)
    wide[64:].fill_(1.5)
    turn[(x.shape[0] // 64,)](TensorDescriptor(x, [*x.shape], [x.shape[1], 1], [64, 64]),
                              TensorDescriptor(kept, [*x.shape], [x.shape[1], 1], [64, 64]), 64)
    add[(triton.cdiv(x.numel(), 256),)](kept, wide[64:], x.numel(), 2.0, 256, num_warps=8)
    return (wide[64:],)
"""

FORBIDDEN = """
STATE = []
KEPT = torch.empty((128, 64))
"""
"""What the dialect lets no candidate have; should one have it, a plan must still hold no trace of it."""


def described(name, *shape, dtype="float32"):
    return {"name": name, "shape": list(shape), "dtype": dtype}


SQUARE = {"id": "square", "inputs": [described("x", 128, 64)], "outputs": [described("y", 128, 64)]}


@pytest.fixture(scope="module")
def compiler(tmp_path_factory):
    keeper = compile_children(load_target("h200").gpu)
    yield keeper
    keeper.close()


def compiled(compiler, source, *workloads, **params):
    """The child's answer."""
    job = Frame("compile", {"source": source, "params": params, "workloads": list(workloads or (SQUARE,))})
    outcome = compiler.run(job, JobLimits(120.0, 120.0))
    assert outcome.ending is Ending.DONE, outcome.detail + outcome.log
    return outcome.frames[-1]


def recorded(compiler, source):
    answer = compiled(compiler, source)
    assert answer.kind == "compiled", answer.data
    return Plan.from_bytes(answer.blobs["square"])


@pytest.fixture(scope="module")
def one(compiler):
    return recorded(compiler, HEADER + ONE)


@pytest.fixture(scope="module")
def two(compiler):
    return recorded(compiler, HEADER + TWO)


def test_a_launch_is_recorded_by_role(one):
    assert one.inputs == (Tensor("x", "float32", (128, 64)),) and one.buffers == (128 * 64 * 4,)
    assert one.outputs == (Output("y", "float32", (128, 64), buffer=0, offset=0),)
    assert [one.role(slot) for slot in (0, 1)] == ["input x", "output y"]
    (launch,) = one.launches
    assert (launch.symbol, launch.grid, launch.warps, launch.cluster) == ("add", (32, 1, 1), 4, 1)
    factor = Scalar(4, int.from_bytes(struct.pack("<f", 0.5), "little"))
    nothing = Scalar(8, 0)
    assert launch.arguments == (Pointer(0, 0), Pointer(1, 0), Scalar(4, 128 * 64), factor, nothing, nothing)


def test_fills_views_scratch_and_tensor_maps_are_recorded_in_order(two):
    assert two.buffers == (128 * 64 * 4, 192 * 64 * 4)
    assert [two.role(slot) for slot in range(3)] == ["input x", "scratch 0", "output y"]
    assert two.outputs == (Output("y", "float32", (128, 64), buffer=1, offset=64 * 64 * 4),)
    zeros, ones, turn, add = two.steps
    assert zeros == Fill(1, 0, 128 * 64 * 4, 0, 4)
    assert ones == Fill(2, 64 * 64 * 4, 128 * 64 * 4, 0x3FC00000, 4)
    assert isinstance(turn, Launch) and isinstance(add, Launch)
    maps = [a for a in turn.arguments if isinstance(a, TensorMap)]
    assert [(m.slot, m.offset, m.dtype, m.shape, m.strides, m.box) for m in maps] == [
        (slot, 0, 7, (128, 64), (256,), (64, 32)) for slot in (0, 1)
    ]
    assert add.arguments[:2] == (Pointer(1, 0), Pointer(2, 64 * 64 * 4)) and add.warps == 8


def test_a_plan_for_fewer_rows_ends_its_tensor_maps_there(one, two):
    short = two.with_rows(0, 100)
    assert short.inputs == (Tensor("x", "float32", (100, 64)),) and short.buffers == two.buffers
    maps = [a for step in short.launches for a in step.arguments if isinstance(a, TensorMap)]
    assert [(m.slot, m.shape) for m in maps] == [(0, (100, 64)), (1, (128, 64))]
    for plan, rows, reason in ((two, 129, "has 128 rows"), (two, 0, "has 128 rows"), (one, 100, "copy engine")):
        with pytest.raises(PlanError, match=reason):
            plan.with_rows(0, rows)


@pytest.mark.parametrize(
    ("old", "new", "kind", "message"),
    [
        ("0.5, 256)", "x.data_ptr(), 256)", "NotRecorded", "other arguments of add"),
        ("triton.cdiv(x.numel(), 256)", "1 + x.storage_offset()", "NotRecorded", "on a grid of"),
        ("add[", "x = x * 2\n    add[", "ForeignWork", "torch computes mul"),
        ("add[", "y = y.t().contiguous()\n    add[", "ForeignWork", "torch computes clone"),
        ("return (y,)", "return (x,)", "NotRecorded", "output y is input x"),
        ("(x, y, x.numel()", "(KEPT, y, x.numel()", "NotRecorded", "no tensor that this call of launch made"),
        ("add[", "y.t()[:7].fill_(1)\n    add[", "NotRecorded", "fill the whole tensor"),
        ("return (y,)", "return (y.view(64, 128),)", "TypeError", "output y is"),
        ("triton.cdiv(x.numel(), 256)", "STATE.append(1) or len(STATE)", "NotRecorded", "of (1, 1, 1), then of (2,"),
        ("(triton.cdiv(x.numel(), 256),)", "(1.5,)", "NotRecorded", "whole numbers"),
        ("(triton.cdiv(x.numel(), 256),)", "(1, 70000)", "PlanError", "out of bounds"),
    ],
)
def test_what_a_plan_cannot_hold_is_refused_with_the_reason(compiler, old, new, kind, message):
    assert old in ONE
    answer = compiled(compiler, HEADER + FORBIDDEN + ONE.replace(old, new, 1))
    assert answer.kind == "error" and answer.data["type"] == kind, answer.data
    assert message in answer.data["message"]


# -- bytes --------------------------------------------------------------------------------------


def header_of(plan):
    data = plan.to_bytes()
    (size,) = struct.unpack_from("<I", data, len(MAGIC))
    return json.loads(data[len(MAGIC) + 4 : len(MAGIC) + 4 + size])


def packed(header, codes):
    """Bytes with a right checksum, whatever they say."""
    text = json.dumps(header).encode()
    body = MAGIC + struct.pack("<I", len(text)) + text + codes
    return body + hashlib.sha256(body).digest()


def test_plans_come_back_from_their_bytes(one, two):
    for plan in (one, two):
        again = Plan.from_bytes(plan.to_bytes())
        assert again == plan and again.to_bytes() == plan.to_bytes() and again.digest == plan.digest
        assert packed(header_of(plan), b"".join(plan.codes)) != plan.to_bytes(), "the canonical form is dense"


@given(data=st.data())
@settings(max_examples=200, deadline=None)
def test_a_damaged_plan_is_refused(two, data):
    whole = bytearray(two.to_bytes())
    place = data.draw(st.integers(0, len(whole) - 1))
    whole[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(PlanError):
        Plan.from_bytes(bytes(whole))
    with pytest.raises(PlanError):
        Plan.from_bytes(two.to_bytes()[:place])


WILD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.integers(-2, 70000),
    st.floats(),
    st.text(max_size=8),
    st.just([]),
    st.just({}),
    st.lists(st.integers(-1, 2**41), max_size=6),
)


def places(node, path=()):
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [path, *(p for key, child in children for p in places(child, (*path, key)))]


@given(data=st.data())
@settings(max_examples=400, deadline=None)
def test_a_plan_changed_anywhere_is_sound_or_refused(two, data):
    """Whatever a hostile child writes: no other error, and nothing the host would do out of bounds."""
    header = header_of(two)
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(places(header)[1:]))
        node = header
        for key in path[:-1]:
            node = node[key]
        if data.draw(st.booleans()):
            node[path[-1]] = data.draw(WILD)
        elif isinstance(node, dict):
            del node[path[-1]]
        else:
            node.append(data.draw(WILD))
    try:
        plan = Plan.from_bytes(packed(header, b"".join(two.codes)))
    except PlanError:
        return
    slots = len(plan.inputs) + len(plan.buffers)
    for step in plan.steps:
        if isinstance(step, Fill):
            assert len(plan.inputs) <= step.slot < slots
            assert step.offset >= 0 and step.offset + step.bytes <= plan.slot_bytes(step.slot)
            continue
        parameters = read_cubin(plan.codes[step.code]).kernels[step.symbol]
        assert all(1 <= n <= most for n, most in zip(step.grid, (2**31 - 1, 65535, 65535), strict=True))
        sizes = [8 if isinstance(a, Pointer) else 128 if isinstance(a, TensorMap) else a.size for a in step.arguments]
        assert sizes == [p.size for p in parameters]
        for argument in step.arguments:
            if isinstance(argument, Pointer):
                assert 0 <= argument.offset <= plan.slot_bytes(argument.slot)
            if isinstance(argument, TensorMap):
                reach = 4 + 4 * (argument.shape[-1] - 1) if argument.dtype == 7 else 0
                reach += sum((n - 1) * s for n, s in zip(argument.shape, argument.strides, strict=False))
                assert argument.offset >= 0 and argument.offset + reach <= plan.slot_bytes(argument.slot)
    for output in plan.outputs:
        assert output.offset + output.bytes <= plan.buffers[output.buffer]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"grid": (1 << 31, 1, 1)}, "out of bounds"),
        ({"grid": (0, 1, 1)}, "out of bounds"),
        ({"grid": (1 << 30, 1, 1), "cluster": 4}, "out of bounds"),
        ({"symbol": "sub"}, "no kernel 'sub'"),
        ({"code": 1}, "names no code"),
        ({"warps": 8}, "compiled for blocks of 128 threads"),
        ({"shared": 1 << 20}, "shared memory"),
        ({"cluster": 5}, "cluster"),
        ({"cooperative": 1}, "flags"),
        ({"arguments": ()}, "takes 6 arguments, the plan has 0"),
        ({"argument": (0, Pointer(2, 0))}, "no input and no buffer"),
        ({"argument": (0, Pointer(0, 128 * 64 * 4 + 1))}, "begins outside of input x"),
        ({"argument": (1, Scalar(4, 0))}, "takes 8 bytes where the plan has 4"),
        ({"argument": (2, Scalar(4, 1 << 32))}, "larger than its size"),
    ],
)
def test_a_launch_out_of_bounds_is_refused(one, changes, message):
    (launch,) = one.launches
    if "argument" in changes:
        place, value = changes["argument"]
        changes = {"arguments": (*launch.arguments[:place], value, *launch.arguments[place + 1 :])}
    with pytest.raises(PlanError, match=message):
        dataclasses.replace(one, steps=(dataclasses.replace(launch, **changes),))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shape": (129, 64)}, "reaches outside of input x"),
        ({"strides": (512,)}, "reaches outside of input x"),
        ({"offset": 16}, "reaches outside of input x"),
        ({"box": (64, 512)}, "box"),
        ({"shape": (64,)}, "rank"),
        ({"slot": -1}, "no input"),
    ],
)
def test_a_tensor_map_out_of_bounds_is_refused(two, changes, message):
    turn = two.launches[0]
    first = dataclasses.replace(turn.arguments[0], **changes)
    with pytest.raises(PlanError, match=message):
        dataclasses.replace(two, steps=(dataclasses.replace(turn, arguments=(first, *turn.arguments[1:])),))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"backend": "hip"}, "backend"),
        ({"architecture": 80}, "for architecture 90"),
        ({"buffers": (1 << 41,)}, "no size"),
        ({"buffers": (16,)}, "outside of output y"),
        ({"inputs": (Tensor("x", "float3", (4,)),)}, "unknown dtype"),
        ({"codes": (b"\x7fELF",)}, "well-formed"),
        ({"outputs": tuple(Output(name, "float32", (128, 64), 0, 0) for name in "yz")}, "same memory"),
        ({"steps": (Fill(0, 0, 4, 0, 4),)}, "overwrites an input"),
        ({"steps": (Fill(1, 0, 128 * 64 * 4 + 4, 0, 4),)}, "reaches outside of output y"),
        ({"steps": (Fill(1, 0, 4, 256, 1),)}, "larger than its width"),
    ],
)
def test_a_plan_out_of_bounds_is_refused(one, changes, message):
    with pytest.raises(PlanError, match=message):
        dataclasses.replace(one, **changes)


# -- code ---------------------------------------------------------------------------------------


PTX = """
.version 8.3
.target sm_90a
.address_size 64
{before}
.visible .entry kernel(.param .u64 out) {{
  .reg .b64 %rd<4>;
  .reg .b32 %r<4>;
  ld.param.u64 %rd1, [out];
  {body}
  ret;
}}
"""


@pytest.mark.parametrize(
    ("before", "body", "message"),
    [
        ("", "st.global.u32 [%rd1], 7;", None),
        (".global .u32 kept;", "atom.global.add.u32 %r1, [kept], 1; st.global.u32 [%rd1], %r1;", "keeps variables"),
        (
            ".extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);",
            "{ .param .b64 a; .param .b64 b; .param .b32 r; st.param.b64 [a], %rd1; st.param.b64 [b], %rd1;"
            " call.uni (r), vprintf, (a, b); }",
            "needs 'vprintf'",
        ),
    ],
)
def test_code_that_keeps_variables_or_needs_other_code_is_refused(before, body, message, tmp_path):
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas"
    (tmp_path / "k.ptx").write_text(PTX.format(before=before, body=body))
    subprocess.run([tool, "-arch=sm_90a", tmp_path / "k.ptx", "-o", tmp_path / "k.cubin"], check=True)
    code = (tmp_path / "k.cubin").read_bytes()
    if message is None:
        found = read_cubin(code)
        assert (found.architecture, [p.size for p in found.kernels["kernel"]]) == (90, [8])
        return
    with pytest.raises(CubinError, match=message):
        read_cubin(code)
