"""Lowering a tiled product to Gluon: every parameter keeps the meaning, the code is Hopper's, and what is refused."""

import functools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from testkit.compile_ahead import compiled_ahead
from testkit.rewriting import Trial, load_cases, refusal, rewritten, run_checks
from tilewright.evolve.intake import preflight
from tilewright.evolve.proposers.rewrite.gluon.lower import LowerProduct
from tilewright.evolve.proposers.rewrite.proposer import offers, rewrite
from tilewright.evolve.space.space import read_declarations
from tilewright.fitness.dialect import check
from tilewright.fitness.targets import load_target
from tilewright.seeds.catalogue import load_operator

CASES = {case.name.split("/")[1]: case for case in load_cases(["triton/"])}
POINTER = load_operator("gemm_fp8_blockwise/gemm_nt").kernels["pointer"].source


lowered = functools.partial(rewritten, LowerProduct)


VARIANTS = {
    "fp8_blockwise_pointer.py": [
        {"pieces": 2, "slots": 2, "parts": 2},
        {"consumers": 1, "pin": False, "stages": 1, "programs": 1, "ring": False},
        {"consumers": 3, "skew": True, "walk_rows": 1},
    ],
    "matmul_masked.py": [
        {"pieces": 2, "in_flight": False, "parts": 4, "slots": 4, "BLOCK_N": 128},
        {"stages": 1, "consumers": 1, "slots": 1, "pieces": 2},
    ],
    "matmul_block_pointers.py": [{"pieces": 2, "consumers": 1}],
    "matmul_grouped.py": [{"pieces": 2, "stages": 2}],
    "persistent_matmul.py": [{"pieces": 2}],
    "grouped_tokens.py": [
        {"BT": 128, "consumers": 2, "pieces": 2},
        {"BT": 128, "consumers": 2, "in_flight": False, "stages": 2, "walk_rows": 2},
    ],
}


@pytest.mark.slow
def test_every_parameter_keeps_the_meaning():
    trials = []
    for name, points in VARIANTS.items():
        case = CASES[name]
        source = lowered(case.source)
        assert check(source, entry="launch") == []
        for point in points:
            defaults = read_declarations(source).defaults
            params = {**{k: case.params.get(k, v) for k, v in defaults.items()}, **point}
            if params.get("programs") == 1:
                source = source.replace('params["programs"]', "1")
            trials.append(Trial(case.name, str(point), "", source, params))
    run_checks([CASES[name] for name in VARIANTS], trials)
    assert [(t.kernel, t.rule, t.reason) for t in trials if not t.ok] == []


@pytest.mark.slow
def test_rows_numbers_come_through_the_ring_where_bulk_copies_may_begin():
    """Tails: one whose rows of scales begin at 16 bytes, and one where they do not."""
    case = CASES["fp8_blockwise_pointer.py"]
    source = lowered(POINTER)
    assert "s_desc" in source and "element_size() % 16 == 0" in source
    point = {k: case.params.get(k, v) for k, v in read_declarations(source).defaults.items()}
    for rows in (100, 38):
        inputs = [
            [name, [rows if size == 64 else size for size in shape], dtype, kind]
            for name, shape, dtype, kind in case.inputs
        ]
        trial = Trial(case.name, "", "", source, point)
        run_checks([replace(case, source=POINTER, inputs=inputs)], [trial])
        assert trial.ok, (rows, trial.reason)


def test_products_of_8_bits_are_added_as_the_source_adds_them():
    case = CASES["matmul_masked.py"]
    source = case.source.replace("accumulator = tl.dot(a, b, accumulator)", "accumulator += tl.dot(a, b)")
    assert "IN_FLIGHT=2 if" in lowered(source) and "IN_FLIGHT=2" not in lowered(case.source)
    rows, turned = "b.stride(0),\n        b.stride(1),", "b.stride(1),\n        b.stride(0),"
    source = source.replace("b.shape[1]", "b.shape[0]").replace(rows, turned)  # [N, K], as 8 bits are multiplied
    inputs = [[n, shape[:: 1 if n == "a" else -1], "float8_e4m3fn", kind] for n, shape, _, kind in case.inputs]
    point = {**read_declarations(lowered(source)).defaults, **case.params, "BLOCK_K": 64}
    trials = [Trial(case.name, str(n), "", lowered(source), {**point, "pieces": n, "slots": n}) for n in (1, 2)]
    run_checks([replace(case, source=source, inputs=inputs)], trials)
    assert [t.reason for t in trials if not t.ok] == []


@pytest.mark.parametrize(
    ("added", "widths", "depth", "tile"),
    [
        ("acc += tl.dot(a, b)", "128, 256", 128, (64, 128, 3, 1)),
        ("acc += tl.dot(a, b)", "128, 256", 64, (64, 128, 2, 2)),
        ("acc = tl.dot(a, b, acc)", "128, 256", 64, (64, 256, 2, 1)),
        ("acc = tl.dot(a, b, acc)", "128", 64, (None, None, 2, 2)),
    ],
)
def test_a_product_opens_with_the_tile_that_registers_hold_where_the_source_may_have_it(added, widths, depth, tile):
    source = CASES["matmul_masked.py"].source.replace('"BLOCK_N": (32, 64, 128)', f'"BLOCK_N": (32, 64, {widths})')
    source = source.replace("accumulator = tl.dot(a, b, accumulator)", added.replace("acc", "accumulator"))
    source = source.replace('"BLOCK_K": (32, 64)', f'"BLOCK_K": (32, {depth})').replace('_K": 32', f'_K": {depth}')
    (found,) = [(rule, site) for rule, site in offers(source) if rule.name == LowerProduct.name]
    child = rewrite(source, {}, *found, np.random.default_rng(0))
    assert tuple(child.params.get(n) for n in ("BLOCK_M", "BLOCK_N", "consumers", "pieces")) == tile


@pytest.mark.parametrize("target", ["sm_90", "h200", "sm_100", "gfx950"])
def test_only_hopper_is_offered_its_schedules_and_the_screen_says_why(target):
    told = " ".join(preflight.rewrites({"source": CASES["matmul_masked.py"].source}, load_target(target)))
    hopper = target in ("sm_90", "h200")
    assert (f"{LowerProduct.name} (1)" in told) is hopper and (f"which {target} lacks" in told) is not hopper


def test_the_whole_schedule_is_hoppers_and_spills_nothing(tmp_path):
    """From the naive FP8 seed to 128 x 256 tiles of two consumers in one rewrite."""
    source = lowered(POINTER)
    defaults = read_declarations(source).defaults
    shape = {
        "id": "one",
        "inputs": [
            {"name": "a_q", "shape": [512, 1024], "dtype": "float8_e4m3fn"},
            {"name": "b_q", "shape": [512, 1024], "dtype": "float8_e4m3fn"},
            {"name": "a_s", "shape": [8, 512], "dtype": "float32"},
            {"name": "b_s", "shape": [4, 8], "dtype": "float32"},
        ],
        "outputs": [{"name": "c", "shape": [512, 512], "dtype": "bfloat16"}],
    }
    point = {**defaults, "skew": False, "pieces": 2}
    found = compiled_ahead([(source, point, [shape])], str(tmp_path), processes=1, seconds=280.0)
    assert not found["failed"] and not found["late"], found
    (code,) = tmp_path.rglob("*.ptx")
    text = code.read_text()
    assert "wgmma.mma_async" in text and "cp.async.bulk.tensor" in text and "setmaxnreg" in text
    assert stack_bytes(next(tmp_path.rglob("*.cubin"))) == 0


def stack_bytes(code):
    import re
    import subprocess

    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    text = subprocess.run([tool, "-res-usage", code], capture_output=True, text=True, check=True).stdout
    (found,) = re.findall(r"STACK:(\d+)", text)
    return int(found)


@pytest.mark.parametrize(
    ("name", "old", "new", "reason"),
    [
        ("masked", "other=0.0)\n        b ", "other=1.0)\n        b ", "padded with something other than zero"),
        ("masked", "tl.dot(a, b, accumulator)", "tl.dot(a * 2, b, accumulator)", "an operand computed by a * 2"),
        (
            "masked",
            "tl.store(c_ptrs, accumulator.to(tl.float16), mask=c_mask)",
            "tl.atomic_add(c_ptrs, accumulator)",
            "atomics",
        ),
        ("masked", "tl.store(c_ptrs, acc", "tl.store(c_ptrs + pid, acc", "depends on the program's number"),
        (
            "masked",
            "offs_k[None, :] < K - k * BLOCK_K)",
            "offs_k[None, :] < K // 2 - k * BLOCK_K)",
            "its tensor's bounds",
        ),
        ("masked", "(0, BLOCK_M)\n", "(0, BLOCK_M) + 1\n", "no multiple of its extent"),
        (
            "masked",
            "        a_ptrs += BLOCK_K",
            "        tl.store(c_ptr, k)\n        a_ptrs += BLOCK_K",
            "a store before",
        ),
        ("block_pointers", 'padding_option="zero")', 'padding_option="nan")', "padded with something other than zero"),
        ("block_pointers", "shape=(K, N)", "shape=(K // 2, N)", "whose shape is not its tensor's"),
        ("block_pointers", "strides=(1, w_row)", "strides=(w_row, w_row)", "without one contiguous axis"),
        (
            "block_pointers",
            "        x = tl.load",
            "        x_at = tl.advance(x_at, (0, 0))\n        x = tl.load",
            "advanced before it is used",
        ),
    ],
)
def test_what_is_refused(name, old, new, reason):
    source = CASES[f"matmul_{name}.py"].source
    assert old in source and refusal(LowerProduct, source) == ""
    assert reason in refusal(LowerProduct, source.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("mask = (t[:, None] < last) & ", "mask = (t[:, None] < last - 1) & ", "a store may not leave out"),
        ("acc.to(tl.float16)", "(acc / tl.max(acc, axis=0)[None, :]).to(tl.float16)", "others are mixed with"),
        ("weights + expert * D * H", "weights + expert * D * D", "an address that is no tile"),
        ("(t[:, None] < last) & (k", "(t[:, None] + 1 < last) & (k", "its tensor's bounds"),
    ],
)
def test_rows_that_begin_anywhere_are_refused(old, new, reason):
    source = CASES["grouped_tokens.py"].source
    assert old in source and refusal(LowerProduct, source) == ""
    assert reason in refusal(LowerProduct, source.replace(old, new))


@pytest.mark.slow
def test_tensors_that_no_descriptor_describes_are_left_to_the_old_kernel():
    """Rows of 42 numbers of two bytes begin anywhere; no rule changes the kernel that serves them."""
    case = CASES["matmul_masked.py"]
    source = lowered(case.source)
    point = {k: case.params.get(k, v) for k, v in read_declarations(source).defaults.items()}
    inputs = [[name, [42 if size == 96 else size for size in shape], *rest] for name, shape, *rest in case.inputs]
    trial = Trial(case.name, "", "", source, point)
    run_checks([replace(case, inputs=inputs)], [trial])
    assert trial.ok, trial.reason
    broken = source.replace("accumulator = tl.dot(a, b, accumulator)", "accumulator = tl.dot(a, b)")
    assert broken != source
    trial = Trial(case.name, "", "", broken, point)
    run_checks([replace(case, inputs=inputs)], [trial])
    assert not trial.ok
    assert not [site for rule, site in offers(source) if "lowered" not in site.description]


def test_a_launch_as_the_intake_writes_it_is_lowered():
    """Its operands are named with single quotes, its grid has no parentheses, sides are passed as expressions."""
    source = CASES["matmul_masked.py"].source
    source = source.replace('a, b = inputs["a"], inputs["b"]', "a = inputs['a']\n    b = inputs['b']")
    source = source.replace(
        "        M,\n        N,\n        K,\n        a.s",
        "        a.shape[0],\n        b.shape[1],\n        b.shape[0],\n        a.s",
    )
    source = source.replace("matmul_kernel[grid](", "matmul_kernel[triton.cdiv(a.shape[0], 64) * 4,](")
    assert "K=b.shape[0]" in lowered(source)
