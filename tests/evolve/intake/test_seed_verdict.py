"""``check`` says of a seed what its campaign says."""

import contextlib
import copy
import io
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from tests.evolve.intake import kernels
from tilewright.evolve.campaign.resolve import resolve
from tilewright.evolve.errors import SeedFailed, UserError
from tilewright.evolve.intake import folder, seed_verdict, tune
from tilewright.evolve.intake.seed_verdict import (
    NOISE,
    _adjust_judge,
    _lower_defaults,
    _shrink_inputs,
    run_judged,
    seed_failure,
)
from tilewright.evolve.run import run
from tilewright.evolve.show.display import PlainDisplay
from tilewright.fitness.elements import INEXACT
from tilewright.fitness.evaluation import GateReading, Verdict
from tilewright.fitness.gates import failure, read_gates
from tilewright.fitness.targets import load_target
from tilewright.seeds.sampled import kind_tables, normal_table
from tilewright.workers.device.warm_device import device_for
from tilewright.workers.intake.calls.dtypes import numpy_dtype
from tilewright.workers.intake.judge.inputs import draws
from tilewright.workers.intake.operator import SMALLER, Operand, Result, SampledOperator, TakenOperator, operand_row

pytest.importorskip("triton")
TARGET = load_target("interpreter")


@pytest.fixture(scope="module")
def taken(tmp_path_factory):
    files = kernels.write(tmp_path_factory.mktemp("code"))
    request = tune.Request(
        files / "mine.py", "group_norm", f"{files}/plain.py:group_norm", ("bf16[512, 64], eps=1e-6",)
    )
    return request, tune.ask_intake(request, TARGET)


def _stricter(answer):
    return {**answer, "results": [[*row[:3], 200.0, *row[4:]] for row in answer["results"]]}


def _other_shape(answer):
    return {**answer, "results": [[*row[:2], [1], *row[3:]] for row in answer["results"]]}


def _not_finite(answer):
    return {
        **answer,
        "source": answer["source"]
        .replace("tl.sqrt(v + _eps)", "tl.sqrt(v - v)")
        .replace("tl.sqrt(v + eps)", "tl.sqrt(v - v)"),
    }


@pytest.mark.parametrize("changed", [dict, _stricter, _other_shape, _not_finite])
def test_check_and_campaign_say_the_same_of_a_seed(taken, changed, tmp_path):
    request, whole = taken
    answer = changed(whole)
    why = seed_failure(request, answer, TARGET, None)
    assert bool(why) == (changed is not dict), why
    where = tmp_path / "group_norm_tuned"
    folder.write(where, "group_norm", request.reference, answer)
    overrides = {"budget.evaluations": 1, "mlflow.enabled": False}
    config = tune.config_of(request, TARGET, where, overrides)
    try:
        run(config, tmp_path / "home", PlainDisplay(io.StringIO()))
        message = ""
    except UserError as error:
        message = str(error)
    assert bool(message) == bool(why)
    # a campaign tells the first kind that fails, ``check`` the one that bars
    what, *_ = why.partition(" on randn")
    assert what in message and str(tmp_path) not in why


def test_all_kinds_that_a_seed_fails_on_are_told_at_once_by_a_device_that_stays(taken, tmp_path, monkeypatch):
    request, answer = taken
    with device_for(TARGET) as device:
        for _ in range(2):
            found, gates = seed_verdict._evaluation(request, _stricter(answer), TARGET, device.lend(), tmp_path, 0)
            assert {r.inputs for r in found.gates if not r.passed} == {*answer["kinds"]}
        assert device.station.hello() and device.station.replaced == 0
    turned = found.gates[::-1]  # of which the first could be left out, and the last bars
    turned = found.model_copy(update={"gates": turned, "reason": failure(turned, gates)})
    monkeypatch.setattr(seed_verdict, "_evaluation", lambda *_: (turned, gates))
    assert " on randn: " not in turned.reason and " on randn: " in seed_failure(
        request, _stricter(answer), TARGET, None
    )


@pytest.mark.parametrize(
    ("inputs", "detail", "kinds", "worst"),
    [
        ("timed calls at 4096 on faint-118", "", ["randn"], 0.001),
        ("faint-118", "errors lean", ["randn"], 0.001),
        ("timed calls at 4096 on faint", "", ["randn"], 0.001),
        (
            "timed calls at 4096",
            "element [0] is off by 0.002 of what is usual around it",
            ["randn", "faint-118"],
            0.004,
        ),
        ("randn", "element [0] is off by 0.3 of what is usual around it", None, 0.001),
        ("randn", "4.2 dB more noise than rounding makes", None, 0.001),
    ],
)
def test_what_a_device_does_otherwise_is_left_out_or_measured(inputs, detail, kinds, worst):
    answer = {
        "kinds": ["randn", "faint-118"],
        "notes": [],
        "results": [["o0", "float16", ["M"], 60.0, 0.001, 0, False]],
    }
    failed = GateReading(gate="o0", inputs=inputs, value=70.0, passed=False, detail=detail)
    assert _adjust_judge(answer, failed, TARGET) == (kinds is not None) == bool(answer["notes"])
    assert answer["kinds"] == (kinds or ["randn", "faint-118"]) and answer["results"][0][4] == worst


@pytest.mark.parametrize(("own", "value", "bar"), [(True, 48.6, 45.6), (True, 39.0, None), (False, 48.6, None)])
def test_a_kernel_that_is_its_own_reference_may_make_as_much_noise_on_a_device_as_in_the_interpreter(own, value, bar):
    answer = {"kinds": ["randn"], "notes": [], "results": [["o0", "float32", ["M"], 54.0, None, 0, False]]}
    failed = GateReading(gate="o0", inputs="randn", value=value, passed=False)
    assert _adjust_judge(answer, failed, TARGET, own) == (bar is not None)
    assert answer["results"][0][3] == (bar or 54.0)


def test_inputs_are_made_smaller_once_where_answers_are_no_numbers():
    operands = [Operand("x", "bfloat16", ("M",)), Operand("i", "int32", ("M",), below=4)]
    answer = {"notes": [], "operands": [operand_row(o) for o in operands]}
    timed = GateReading(gate="o0", inputs="timed calls at 4096", value=None, passed=False)
    assert not _shrink_inputs(answer, timed.model_copy(update={"value": 40.0}))
    assert _shrink_inputs(answer, timed) and not _shrink_inputs(answer, timed)
    assert [row[5] for row in answer["operands"]] == [SMALLER, 1.0] and answer["notes"][0].endswith(": x")


def test_sums_and_codes_of_a_device_are_judged_by_the_kernels_own_and_others_may_not_hide_behind_it():
    rows = [["o0", "bfloat16", ["M"], 45.0, None, 0, False], ["o1", "int8", ["M"], 0.0, None, 1, 0.0]]
    answer = {"kinds": ["randn"], "notes": [], "results": rows}
    noise, one_way = "7.6 dB more noise than rounding makes", "codes that differ do so one way, up or down"

    def settled(gate, value, detail=""):
        return _adjust_judge(
            answer, GateReading(gate=gate, inputs="randn", value=value, passed=False, detail=detail), TARGET
        )

    assert settled("o0", 53.0, noise) and rows[0][3:5] == [50.0, NOISE]  # 3 dB below its own, and not 45
    assert settled("o0", 48.5) and rows[0][3] == 45.5  # another kind's own
    assert not settled("o0", 44.0) and not settled("o0", 53.0, "element [0] is zero")
    assert settled("o1", 0.9995, one_way) and rows[1][6] == pytest.approx(0.001)
    lean = "errors go one way, towards zero or away from it, by 0.5 of a last place"
    assert settled("o0", 52.0, lean) and rows[0][6] == 1.0 and not settled("o0", 52.0, lean)
    assert not settled("o1", 0.9995, one_way) and not settled("o1", 0.99)
    assert settled("o1", 0.998) and rows[1][6] == pytest.approx(0.004)
    gate = TakenOperator("t", "r", "c", (Operand("x", "float32", ("M",)),), (Result(*rows[1]),), {}, {}).gates[0]
    assert gate.leans and gate.least == pytest.approx(0.996)


@pytest.mark.parametrize("interpreted", [False, True])
def test_a_kind_that_is_taken_off_is_not_used_again(taken, tmp_path, monkeypatch, interpreted):
    request, answer = taken[0], {**taken[1]}
    where, seen = tmp_path / "group_norm_tuned", []
    folder.write(where, "group_norm", request.reference, answer)
    monkeypatch.setattr(
        seed_verdict, "seed_failure", lambda _, answer, *__: answer["kinds"].__delitem__(slice(1, None))
    )
    answer["kinds"] = [*answer["kinds"]]

    config = tune.config_of(request, TARGET, where, {"mlflow.enabled": False})

    def campaign(config, *_, **__):
        seen.append(len(resolve(config).operator.input_kinds))
        if len(seen) == 1:
            raise SeedFailed("it fails")

    monkeypatch.setattr(seed_verdict, "device_for", lambda _: contextlib.nullcontext())
    gpu = SimpleNamespace(interpreted=interpreted, part=None, measured=True)
    monkeypatch.setattr("tilewright.evolve.run.run", campaign)
    if not interpreted:  # a device's draws are judged before
        seen.append(2)
    run_judged(config, tmp_path, request, answer, gpu, where, None, print)
    assert len(seen) == 2 and seen[0] > seen[1] == 1


def test_of_a_seed_that_cannot_be_settled_the_last_reason_is_said(monkeypatch, tmp_path):
    monkeypatch.setattr(seed_verdict, "seed_failure", lambda *_: "fails its own gate: at o1")

    def campaign(*_, **__):
        raise SeedFailed("seeds: seed fails its own gate: at o0.")

    monkeypatch.setattr(seed_verdict, "device_for", lambda _: contextlib.nullcontext())
    monkeypatch.setattr("tilewright.evolve.run.run", campaign)
    for interpreted, message in (
        (True, r"at o0; judged .*, it fails .*: at o1\.$"),
        (False, r"^seeds: it fails .*: at o1\.$"),
    ):
        target = SimpleNamespace(interpreted=interpreted, part=None, measured=True)
        request = tune.Request(tmp_path, "f", "torch.relu", ())
        with pytest.raises(SeedFailed, match=message):
            run_judged(SimpleNamespace(seed=0), tmp_path, request, {"notes": []}, target, tmp_path, None, print)


def test_every_draw_judges_a_seed_and_all_their_readings_count(taken, tmp_path, monkeypatch):
    request, answer = taken
    monkeypatch.setattr(seed_verdict, "_draws", lambda _: 2)
    with device_for(TARGET) as device:
        found, _ = seed_verdict._evaluation(request, answer, TARGET, device.lend(), tmp_path, 0)
    assert found.verdict is Verdict.OK
    assert max(Counter((r.gate, r.inputs, r.workload) for r in found.gates).values()) == 2


def _in_14_bits(a, b):
    """Products by rows as a tensor core adds 32 at a time to their sum: each addend cut to 2^-13 of the largest."""
    total = np.zeros((len(a), len(b)))
    for k in range(0, a.shape[1], 32):
        addends = np.concatenate([a[:, None, k : k + 32] * b[None, :, k : k + 32], total[..., None]], -1)
        unit = np.exp2(np.frexp(np.abs(addends).max(-1, keepdims=True))[1] - 14.0)
        total = (np.trunc(addends / unit) * unit).sum(-1)
    return total


def test_blocks_that_need_too_much_memory_begin_smaller(monkeypatch):
    answer = {
        "notes": ["n"],
        "space": {"rows": [8, 16, 64], "cols": [128]},
        "defaults": {"rows": 64, "cols": 128},
        "source": "SPACE = {}\nDEFAULTS = {\n    'rows': 64, 'cols': 128}\nORIGINAL = {}\n",
    }
    verdicts = iter([Verdict.RESOURCE_ERROR] * 2 + [Verdict.OK])
    found = lambda *_: (SimpleNamespace(verdict=next(verdicts), reason="9M of 6M"), ())  # noqa: E731
    monkeypatch.setattr(seed_verdict, "_evaluation", found)
    assert seed_failure(SimpleNamespace(reference=""), answer, TARGET, None) == ""
    assert answer["defaults"] == {"rows": 8, "cols": 128}
    assert answer["source"] == "SPACE = {}\nDEFAULTS = {'rows': 8, 'cols': 128}\nORIGINAL = {}\n"
    assert len(answer["notes"]) == 2 and "'rows': 8" in answer["notes"][1]


def test_sums_of_8_bits_in_place_are_judged_by_what_the_hardware_keeps_of_them():
    answer = {
        "kinds": ["randn", "repeated", "huge-40", "signed-rows"],
        "notes": [],
        "dims": [{"M": 48, "N": 48, "K": 4096}],
        "check": [{"M": 48, "N": 48, "K": 320}],
        "source": "acc = tl.dot(a, b, acc)",
        "operands": [["a", "float8_e4m3fn", ["M", "K"]], ["b", "float8_e4m3fn", ["N", "K"]]],
        "results": [["o0", "bfloat16", ["M", "N"], 45.0, None, 0, False]],
    }
    operands = [Operand(name, dtype, tuple(shape)) for name, dtype, shape in answer["operands"]]

    def failed(changed):
        """The first reading of the seed's that does not pass."""
        kinds, lost = changed["kinds"], changed.get("lost_tables", ())
        taken = SampledOperator(
            "t", "r", "c", tuple(operands), (Result(*changed["results"][0]),), {}, {}, kinds=kinds, lost_tables=lost
        )
        rng = np.random.default_rng(0)
        for kind, timed in [*((k, False) for k in kinds), *((k, True) for k in ("", *taken.table_kinds))]:
            if timed:
                table = kind_tables({"x": normal_table(1.0)}, kind)["x"]
                given = [rng.choice(table, (48, 4096)).astype(numpy_dtype(o.dtype)) for o in operands]
            else:
                given = list(draws(operands, {"M": 48, "N": 48, "K": 320}, kind, 4, rng).values())
            a, b = (array.astype(np.float64) for array in given)
            found = {"o0": _in_14_bits(a, b).astype(numpy_dtype("bfloat16"))}
            reading = read_gates(taken.gates, found, {"o0": {"o0": a @ b.T}}, kind, least=INEXACT)[0]
            if not reading.passed:
                return reading
        return None

    apart = {**copy.deepcopy(answer), "source": "acc += tl.dot(a, b)", "kinds": ["randn"]}
    noisy = GateReading(gate="o0", inputs="timed calls", value=53.0, passed=False, detail="2 dB more noise")
    assert not _adjust_judge(apart, noisy, TARGET) and apart["results"][0][4] is None
    while (reading := failed(answer)) is not None:
        assert _adjust_judge(answer, reading, TARGET), reading
    assert answer["kinds"] == ["randn", "repeated", "huge-40", "signed-rows"] and answer["results"][0][4] == 2.0**-4
    assert answer["results"][0][6] == answer["check"][0]["K"] * 2.0**-8, "in every draw sums of one sign fall short"
    assert answer["lost_tables"] == ("signed", "repeated") and "acc += tl.dot(a, b)" in answer["notes"][0]


@pytest.mark.parametrize(("takes", "rows"), [("64.00M of 63.94M", 32), ("200.00M of 63.94M", 16)])
def test_a_seed_that_needs_too_much_memory_begins_with_as_much_smaller_blocks(takes: str, rows: int) -> None:
    answer = {"defaults": {"n": 64}, "space": {"n": [8, 16, 32, 64]}, "source": "DEFAULTS = {}", "notes": []}
    assert _lower_defaults(answer, f"its blocks take {takes} bytes of vmem")
    assert answer["defaults"] == {"n": rows} and answer["source"] == f"DEFAULTS = {{'n': {rows}}}"
