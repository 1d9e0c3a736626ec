"""Styles of public Pallas code: objects, tables of sizes, types that are not here; each runs as it stands."""

import contextlib
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
from jax.experimental import pallas as pl  # noqa: E402
from jax.experimental.pallas import tpu as pltpu  # noqa: E402

from tilewright.evolve.intake.original_winner import original_text  # noqa: E402
from tilewright.fitness import dialect  # noqa: E402
from tilewright.fitness.original import data_of, is_original  # noqa: E402
from tilewright.fitness.targets import load_target  # noqa: E402
from tilewright.fitness.tpu import structure  # noqa: E402
from tilewright.workers.intake.child_program import Refusal  # noqa: E402
from tilewright.workers.intake.judge import self_reference  # noqa: E402
from tilewright.workers.intake.operator import Operand  # noqa: E402
from tilewright.workers.intake.pallas import program as pallas  # noqa: E402
from tilewright.workers.intake.pallas import trial  # noqa: E402
from tilewright.workers.intake.pallas.knob_evidence import smallest_taking  # noqa: E402
from tilewright.workers.intake.pallas.original import Original, on_chip, plain_jaxpr  # noqa: E402
from tilewright.workers.intake.pallas.seed_build import SeedBuild, picked  # noqa: E402
from tilewright.workers.runners.pallas.jaxpr_codec import encode  # noqa: E402
from tilewright.workers.runners.pallas.trace import load_build  # noqa: E402

STYLES = Path(__file__).with_name("pallas_styles.py")
CALL = "f32[64, 512]"
CHIP = {"kind": "TPU7x", "cores": 1}


def asked(path, name, call, folder, target="tpu7x"):
    asked_of = {"path": str(path), "function": name, "target": target}
    return {**asked_of, "reference": "", "calls": [call], "folder": str(folder)}


@pytest.fixture
def taken(monkeypatch, tmp_path):
    """Takes a function in up to its module: the module and its knobs."""
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(sys, "path", list(sys.path))
    found: list[Any] = []

    def kept(request, chip, module, operands, calls, knobs, places):
        found.append((module, knobs))
        return {}

    monkeypatch.setattr(pallas, "judge", kept)

    def take(name, path=STYLES, target="tpu7x"):
        answer = pallas.answer_to(asked(path, name, CALL, tmp_path, target))
        assert answer["refusals"] == []
        return *found[-1], answer["notes"]

    return take


def traced(module, folder, params):
    with on_chip(CHIP):
        made = jax.make_jaxpr(module.build(folder)(params))(jax.ShapeDtypeStruct((64, 512), "float32"))
        return encode(plain_jaxpr(made)).text.decode()


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("scaled", {"block": 128}),
        ("below", {"block_cols": 128, "block_rows": 8}),
        ("chosen_within", {"size": 256, "block_rows": 8}),
        ("asked", {"size": 256}),
        ("capped", {"max_block": 512}),
    ],
)
def test_any_python_runs_as_it_stands_with_the_block_sizes_that_it_names_or_chooses(taken, tmp_path, name, sizes):
    module, knobs, notes = taken(name)
    defaults = {knob.name: knob.default for knob in knobs}
    assert sizes.items() <= defaults.items()
    plain = traced(module, tmp_path, defaults)
    assert "pallas_call" in plain
    for size in sizes:
        assert traced(module, tmp_path, {**defaults, size: 64}) != plain, size
    if is_original(module.source("SPACE = {}\n")):
        assert "no rewrites: the function runs as it stands" in notes[0]
    else:
        assert not notes


def test_an_original_is_data_and_its_winner_is_the_users_file_with_the_sizes_that_won(taken, tmp_path):
    module, knobs, _ = taken("asked")
    source = module.source("SPACE = {}\n")
    assert Original.of_source(source) == module
    assert dialect.check(source), "nobody but the operator may bring one"
    sizes = {knob.name: 64 if knob.default == 8 else knob.default for knob in knobs}
    data = data_of(source)
    data["files"][data["path"]] += "\nrandom.register_prng(None)  # by a name, which may be given once\n"
    text = original_text(data, sizes, "asked", "tuned", ["x"])
    assert "register_prng" not in text
    assert "BlockSpec((64, block_cols)" in text
    scope: dict[str, Any] = {"__name__": "winner"}
    sys.modules["winner"] = ModuleType("winner")  # dataclasses look their module up
    sys.modules["absent_types"] = SimpleNamespace(Array=str, Float=dict)  # type: ignore[assignment]
    try:
        exec(compile(text, "winner", "exec"), scope)
        shape = jax.ShapeDtypeStruct((64, 512), jnp.float32)
        with on_chip(CHIP):
            assert jax.eval_shape(scope["tuned"], shape).shape == (64, 512)
    finally:
        del sys.modules["winner"], sys.modules["absent_types"]


@pytest.mark.parametrize("decorator", ["", "@partial(jax.jit, static_argnames='cols')\n"])
def test_a_plain_text_is_followed_and_traces_to_what_the_function_does(
    taken: Any, tmp_path: Path, decorator: str
) -> None:
    file = tmp_path / "plain_text.py"
    file.write_text(
        "from functools import partial\nimport jax\nfrom jax.experimental import pallas as pl\n\nROWS = 8\n\n\n"
        f"def kernel(x_ref, o_ref):\n    o_ref[...] = x_ref[...]{' * 2.0' * 12}\n\n\n{decorator}"
        "def double(x, cols=128):\n"
        "    spec = pl.BlockSpec((ROWS, cols), lambda i, j: (i, j))\n"
        "    return pl.pallas_call(kernel, grid=(x.shape[0] // ROWS, x.shape[1] // cols), in_specs=[spec],\n"
        "                          out_specs=spec, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), name='twice')(x)\n"
    )
    module, knobs, notes = taken("double", file)
    source = module.source("SPACE = {}\n")
    assert not is_original(source) and not notes
    assert {k.name: k.default for k in knobs} == {"cols": 128, "rows": 8}
    assert "params['rows']" in source
    assert load_build(source)({"cols": 128, "rows": 8}) is not None


@pytest.mark.parametrize(("columns", "reason"), [(512, ""), (256, "begins behind"), (64, "begins behind")])
def test_a_block_that_begins_behind_its_operand_is_refused(columns, reason):
    def added(x, y):
        spec = pl.BlockSpec((8, 128), lambda i, j: (i, j))
        kernel = pl.pallas_call(lambda x, y, o: None, grid=(8, 4), in_specs=[spec] * 2, out_specs=spec, out_shape=x)
        return [kernel(x, y)]

    operands = [Operand("x", "float32", (64, 512)), Operand("y", "float32", (64, columns))]
    chip = load_target("tpu7x").chip
    assert chip is not None
    with pytest.raises(Refusal, match=reason) if reason else contextlib.nullcontext():
        assert SeedBuild(chip, lambda params: added, operands).traced({}, {})


def test_of_a_call_that_fails_nothing_but_its_failure_is_told(tmp_path):
    file = tmp_path / "seven.py"
    file.write_text(
        "import jax\nfrom jax.experimental import pallas as pl\n\n\n"
        "def twice(x, options=None):\n"
        "    if x.shape[0] != 7:\n"
        '        raise ValueError(f"want 7 rows, not {x.shape[0]}")\n'
        "    return pl.pallas_call(lambda a, b: None, out_shape=x)(x)\n"
    )
    answer = pallas.answer_to(asked(file, "twice", "f32[8, 128]", tmp_path))
    reasons = [refusal["what"] for refusal in answer["refusals"]]
    assert reasons == ["the call raises ValueError: want 7 rows, not 8"]


def test_what_no_candidate_may_hold_is_refused_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(pallas, "judge", lambda *given: pytest.fail("it was judged"))
    with pytest.raises(Refusal, match="no candidate may: the primitive approx_top_k"):
        pallas.answer_to(asked(STYLES, "largest", CALL, tmp_path))


def test_a_function_that_is_its_own_reference_finds_the_chip_that_it_was_read_in_for(taken, tmp_path):
    source = taken("only_v6e", target="v6e")[0].source("DEFAULTS = {}") + 'CHIP = "v6e"\n'
    x = np.ones((64, 512), np.float32)
    assert np.array_equal(self_reference._pallas(source, tmp_path)({"x": x})[0], x * 2)


def test_quick_runs_have_the_gates_bits_and_what_traces_alike_is_compiled_once():
    def build(params):
        def kernel(x, out):
            out[...] = x[pl.ds(params["at"] * pl.program_id(0), 8)] * 2 + 1

        spec = pl.BlockSpec((8, min(params["block"], 128)), lambda n: (0, n))
        return pl.pallas_call(
            kernel, jax.ShapeDtypeStruct((8, 256), "float32"), grid=2, in_specs=[spec], out_specs=spec
        )

    chip, x = load_target("tpu7x").chip, np.arange(2048, dtype=np.float32).reshape(8, 256)
    gates, quick = (SeedBuild(chip, build, [], strict=strict) for strict in (True, False))
    for block in (128, 512):
        assert np.array_equal(quick.run({"at": 0, "block": block}, [x])[0], x * 2 + 1)
    assert np.array_equal(gates.run({"at": 0, "block": 128}, [x])[0], x * 2 + 1)
    assert len({id(program) for program in quick.compiled.values()}) == 1
    with pytest.raises(Exception, match="Out-of-bounds"):
        gates.run({"at": 4, "block": 128}, [x])


def test_static_arguments_stay_static_however_often_the_chip_is_entered():
    with on_chip(CHIP), on_chip(CHIP):
        made = jax.jit(lambda x, rows: x.reshape(rows, -1), static_argnames="rows", abstracted_axes=None)
        shape = jax.eval_shape(lambda x: made(x, rows=4), jax.ShapeDtypeStruct((8,), "float32")).shape
    assert shape == (4, 2)


SUMS = [(1, "t", "f4", ""), (1, "u", "f4", "u"), (1, "t", "?", "t"), (2, "t", "f4", "mesh")]


@pytest.mark.parametrize(("devices", "axis", "kind", "reason"), SUMS)
def test_a_sum_over_one_device_is_its_operand_and_no_other_is(devices, axis, kind, reason):
    mesh, spec = jax.sharding.AbstractMesh((devices,), ("t",)), jax.sharding.PartitionSpec()
    refused = pytest.raises((NameError, ValueError), match=reason) if reason else contextlib.nullcontext()
    with on_chip(CHIP), refused:
        summed = jax.shard_map(lambda x: jax.lax.psum(x, axis), mesh=mesh, in_specs=spec, out_specs=spec)
        assert str(jax.make_jaxpr(summed)(np.ones(8, kind))) == "{ lambda ; a:f32[8]. let  in (a,) }"


def test_a_table_picks_from_what_is_copied_by_hand_and_changed_in_place():
    def kernel(table, x, pages, out, changed, block, semaphore):
        pltpu.sync_copy(pages.at[table[0]], block)
        out[...] = x[...] + block[...]

    @jax.jit
    def looked_up(table, x, pages):
        spec = pl.BlockSpec((8, 128), lambda i, table: (i, 0))
        grid = pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(1,),
            out_specs=spec,
            in_specs=[spec, pl.BlockSpec((8, 128), lambda i, table: (table[i], 0))],
        )
        add = lambda table, x, page, out: out.__setitem__(..., x[...] + page[...])  # noqa: E731
        return pl.pallas_call(add, grid_spec=grid, out_shape=x)(table, x, pages)

    @jax.jit
    def read(table, x, pages):
        spec, pages = pl.BlockSpec((8, 128), lambda i, table: (0, 0)), pages.reshape(4, 8, 128)
        grid = pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(table[0],),
            in_specs=[spec, pl.BlockSpec(memory_space=pl.ANY)],
            out_specs=[spec, pl.BlockSpec(memory_space=pl.ANY)],
            scratch_shapes=[pltpu.VMEM((8, 128), jnp.float32), pltpu.SemaphoreType.DMA],
        )
        shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in (x, pages)]
        call = pl.pallas_call(kernel, grid_spec=grid, out_shape=shapes, input_output_aliases={2: 1})
        pages = pltpu.with_memory_space_constraint(pages, pltpu.HBM)
        out, pages = call(table, x, pages)
        return out, pages.reshape(32, 128)

    table = Operand("table", "int32", (1,), below=3, least=1.0)
    operands = [table, Operand("x", "float32", (8, 128)), Operand("pages", "float32", (32, 128))]
    chip = load_target("tpu7x").chip
    seed = SeedBuild(chip, lambda params: lambda *given: list(read(*given)), operands)
    assert picked(seed.closed({}, {})) == ({2}, {1})
    for way in (looked_up, lambda *given: jax.vmap(looked_up)(*(a[None] for a in given))):
        found = SeedBuild(chip, lambda params, way=way: lambda *given: [way(*given)], operands)
        assert picked(found.closed({}, {})) == ({2}, set())
    _, _, reasons = seed.lowered({"one": {}}, ["o0", "o1"], None, {"one": {}})
    assert reasons == [], "a stated grid keeps the alias"
    copied = pl.pallas_call(
        lambda x, out: out.__setitem__(..., x[...]), out_shape=jax.ShapeDtypeStruct((8, 128), "float32")
    )
    unread = SeedBuild(chip, lambda params: lambda x, pages: [copied(x)], operands[1:])
    assert trial._moved(unread, {}, {}) == 2 * 8 * 128 * 4


def test_a_shape_is_made_smaller_and_in_no_dimension_larger():
    takes = SimpleNamespace(traced=lambda dims, _: "text" if dims["L"] >= 256 else 1 / 0)
    assert trial._shrunk({"M": 2, "N": 512, "L": 256}, takes, {}) == {"M": 2, "N": 128, "L": 256}


def test_the_callers_own_integers_are_tried_before_drawn_ones(monkeypatch):
    asked: list[list[str]] = []

    def refused(dims, seed, *_):
        asked.append([operand.form for operand in seed.operands])
        raise Refusal("no shape")

    monkeypatch.setattr(trial, "_checked_shapes", refused)
    pages = [Operand("q", "float32", (8,), values="v"), Operand("table", "int32", (8,), values="v")]
    for operands, forms in ((pages, ["", "given"]), (pages[1:], ["given"])):
        asked.clear()
        with pytest.raises(Refusal):
            trial._shapes_with(operands, {}, SimpleNamespace(), {}, SimpleNamespace())  # type: ignore[arg-type]
        assert asked == [forms, [""] * len(forms), ["given"] * len(forms)]


def test_a_block_is_tried_on_the_smallest_checked_shape_that_takes_it():
    whole, half = (SimpleNamespace(dims={"M": n}) for n in (512, 256))
    legal = {"512": {"cols": [128, 512]}, "256": {"cols": [128]}}
    assert [smallest_taking([whole, half], legal, {"cols": n}) for n in (128, 512)] == [half, whole]


def test_kernels_beside_a_product_are_timed_alone_and_all_around_them_stays():
    operands = [Operand("x", "float32", (8, 512)), Operand("w", "float32", (512, 128))]
    found = []
    for cols, scale in ((128, 1.0), (256, 1.0), (128, 2.0)):

        def run(x, w, cols=cols, scale=scale):
            spec = pl.BlockSpec((8, cols), lambda i: (0, i))
            body = lambda a, b: b.__setitem__(..., a[...] * 2)  # noqa: E731
            call = pl.pallas_call(body, grid=(512 // cols,), in_specs=[spec], out_specs=spec, out_shape=x)
            return [call(x) @ w * scale]

        seed = SeedBuild(load_target("tpu7x").chip, lambda params, run=run: run, operands)
        beside, _, reasons = seed.lowered({"one": {}}, ["o0"], None, {"one": {}})
        assert not reasons and structure.timed_alone(beside)
        found.append({part for part in beside if part.startswith(structure.ALONE)})
    assert found[0] == found[1] != found[2]
