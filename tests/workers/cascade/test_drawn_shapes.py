"""Shapes by lot: what is drawn, and what a finalist's failure there means."""

import dataclasses
import math
from pathlib import Path

import pytest

from testkit.taken import attention, softmax
from tilewright.evolve.promote.verify import served_constraints
from tilewright.fitness.evaluation import Evaluation, GateReading, Stage, Verdict
from tilewright.fitness.targets import load_target
from tilewright.library.dispatch_rule import Legality
from tilewright.seeds.catalogue import load_operator
from tilewright.seeds.operator import Operator
from tilewright.workers.cascade import drawn_shapes as lot
from tilewright.workers.cascade.common_stages import dealt_kinds
from tilewright.workers.cascade.named_sizes import PAIRS, named_sizes
from tilewright.workers.request import Failure, Findings, Limits, Request, Truth

NAMES = (
    "if k // 64 == 3:",
    "if k * 5 == 960:",
    "if not k - 192:",
    "if k in (7, 192):",
    "if k == 128 + 2**6:",
    "if k == HELD:",
)
SMALL = lot.Lot(6, 3, 1 << 14, 1 << 22)


def _request(operator, source="", seed=1):
    suite = next(iter(operator.suites.values()))
    kernel = next(k for k in operator.kernels.values() if not k.baseline)
    text = source or kernel.source
    return Request(
        operator=operator,
        truth=Truth(operator),
        target=load_target("interpreter"),
        limits=Limits(),
        source=text,
        params={**lot.declared(text, "DEFAULTS"), **kernel.overrides},
        seed=seed,
        measured=suite.workloads,
        checked=suite.check,
        folder=Path("/nowhere"),
        genome="g",
        final=True,
    )


@pytest.mark.parametrize(
    ("source", "few", "turns"),
    [
        ("if k // 64 == 3: pass", [192, 255, 224], [191, 192, 255, 256]),
        ("x = (q == 7) & (r == 5)", [5, 7], [4, 5, 6, 7, 8]),
        ("x = 0 < k < 5", [1, 4, 3], [4, 5]),
        ("x = k > 200", [], [200, 201]),
        (
            "x = k % 512 == 511",
            [511, 1535, 261631],
            [510, 511, 512, 1022, 1023, 1024, 1534, 1535, 1536, 2046, 2047, 261120],
        ),
        ("x = next_power_of_2(k) == 1", [1], [1, 2]),
        ("x = k % 7 == 3", [], [2, 3, 4, 9, 10, 11, 16, 17, 18, 23, 24, 25]),
        ("x = k == P * HELD\nHELD = 16", [192], [191, 192, 193]),
        ("x = k // 70000 == 2", [140000, 140001], [139999, 140000]),
        (
            "x = k % 256 < 16 and k < 600",
            [1, 15, 8, 256, 271, 264, 512, 527, 520],
            [15, 16, 255, 256, 271, 272, 511, 512, 527, 528],
        ),
        ("x = k * 3 == 30000", [10000], [9999, 10000, 10001]),
        ("n = tl.sum(tl.where(inside, 1, 0), axis=0)\nx = n == 192", [192], [191, 192, 193]),
        ("x = (k < n).to(tl.float32).sum() == 192.0", [192], [191, 192, 193]),
        ("x = tl.load(k) == 192", [], []),
        ("x = k == 16777216", [1 << 24], [(1 << 24) - 1, 1 << 24]),
        ("while k - 192: pass", [192], [191, 192, 193]),
        ("x = not k - 5 or k == 9", [5, 9], [4, 5, 6, 8, 9, 10]),
        ("x = k.n[1] == 5", [5], [4, 5, 6]),
        ("def f(k):\n  r = k - 9\n  s = r // 2\n  return s == 5", [19, 20], [18, 19, 20, 21]),
        ("def f(r):\n  return r == 5\ndef g(x):\n  f[1](x.shape[1] - 9)", [14], [13, 14, 15]),
        ("def f(k):\n  k = min(cdiv(k, 8), 9)\n  return str(k) == '3'", [17, 24, 21], [16, 17, 24, 25]),
        ("x = tl.num_programs(0) == 3 + tl.program_id(0)", [], []),
        ("def f():\n  row = tl.program_id(0)\n  x = row == 77", [78], [77, 78, 79]),
        ("x = tl.sqrt(k.to(tl.float32)).to(tl.int32) == 3", [9, 15, 12], [8, 9, 15, 16]),
        *(
            (text, [], [])
            for text in (
                "x = k - 5",
                "if k: pass",
                "x = k == r",
                "x = k == 1.5",
                "x = 'k' == 5",
                "x = 1 == 1",
                "x = k == 2**3**4",
                "x = k == 1 << 99",
                "x = k // (k - k) == 1",
                "x = k == L",
                "x = k == P.n",
                "x = f(k) == 2",
            )
        ),
    ],
)
def test_sizes_at_which_a_truth_turns(source, few, turns):
    found = named_sizes(source, {"P": 12, "L": 2.5})
    assert (found.few, found.turns) == (tuple(few), tuple(turns))


def test_two_sizes_that_a_truth_names_together():
    assert named_sizes("x = m == 9 and n == 130", {}).pairs == ((9, 130), (130, 9))
    assert (143, 7) in named_sizes("def f(a):\n  m, n = a.shape\n  return m * n == 1001", {}).pairs
    many = named_sizes("x = (m * 31 + n) % 101 == 5", {}).pairs
    assert many and all((31 * m + n) % 101 == 5 or (31 * n + m) % 101 == 5 for m, n in many)
    assert len(many) <= 2 * PAIRS and (8, 4) in named_sizes("x = m // 2 == n", {}).pairs
    assert not named_sizes("x = m < n", {}).pairs + named_sizes("x = m * n == 1001 + r", {}).pairs
    doubled = "def f(a):\n" + "".join(f"  {b} = {a}*{a}*{a}*{a}*{a}\n" for a, b in ("ab", "bc", "cd", "de", "ef"))
    assert named_sizes(doubled + "  return f == 7", {}) == named_sizes("", {})
    source = softmax().kernels["seed"].source + "\ndef other(m, n):\n    return m * n == 1001\n"
    drawn = [w for seed in range(3) for w in lot.drawn(_request(softmax(), source, seed), SMALL)]
    assert any(w.dims["N"] * w.dims["M"] == 1001 for w in drawn)


@pytest.mark.parametrize(
    ("operator", "name", "drawn"),
    [
        (softmax, "INTERPRETED", "30x234 26x1 4x92 5x70 4x398"),
        (attention, "MEASURED", "23x32x122 24x1x37 12x16x76 7x1x38 2x16x143"),
    ],
)
def test_a_seed_draws_the_same_shapes_every_time(operator, name, drawn):
    found = [w.dims.values() for w in lot.drawn(_request(operator(), seed=0), getattr(lot, name))[:5]]
    assert " ".join("x".join(map(str, sizes)) for sizes in found) == drawn


def test_a_shape_is_long_in_one_dimension_and_short_in_another():
    for seed in range(8):
        drawn = [w.dims for w in lot.drawn(_request(softmax(), seed=seed), lot.MEASURED)]
        assert any(d["M"] > 16 and d["N"] <= 70 for d in drawn) and any(d["M"] <= 4 and d["N"] > 200 for d in drawn)


@pytest.mark.parametrize("test", NAMES)
def test_a_size_that_a_comparison_names_is_drawn(test):
    operator = softmax()
    source = operator.kernels["seed"].source + f"\nHELD = 192\n\ndef other(k):\n    {test}\n        return k\n"
    drawn = [w for seed in range(6) for w in lot.drawn(_request(operator, source, seed), SMALL)]
    assert any(w.dims["N"] == 192 for w in drawn) and any(w.dims["M"] == 192 for w in drawn)


def test_single_sizes_and_pairs_that_are_named_take_turns():
    tests = "\n".join(f"def other{n}(m, k):\n    return k == {190 + n}" for n in range(8))
    source = f"{softmax().kernels['seed'].source}\ndef pair(m, n):\n    return m * n == 1001\n{tests}\n"
    drawn = lot.drawn(_request(softmax(), source), dataclasses.replace(SMALL, shapes=9, named=6))
    pairs = [w for w in drawn if w.dims["M"] * w.dims["N"] == 1001]
    singles = [w for w in drawn if {*range(189, 199)} & {*w.dims.values()}]
    assert len(pairs) == 2 and len(singles) == 3, "the first shape is a large one, and three are corners"


def test_sizes_that_a_truth_finds_alike_are_drawn_where_few_are_legal():
    source = softmax().kernels["seed"].source.replace("CONSTRAINTS = {}", "CONSTRAINTS = {'N % 24 == 0': ''}")
    source += "\ndef other(m, n):\n    return (m == n) & (m > 16)\n"
    drawn = [w for seed in range(3) for w in lot.drawn(_request(softmax(), source, seed), SMALL)]
    assert any(w.dims["M"] == w.dims["N"] > 16 for w in drawn)


def test_what_is_drawn_is_legal_and_small_and_another_each_time():
    assert all(size % by for size in lot.PRIMES for by in range(2, size))
    operator = load_operator("gemm_fp8_blockwise/gemm_nt")
    pointer = operator.kernels["pointer"].source
    found = [lot.drawn(_request(operator, pointer, seed), lot.MEASURED) for seed in range(3)]
    assert all(len(shapes) == lot.MEASURED.shapes for shapes in found) and found[0] != found[1]
    listed = {tuple(w.dims.values()) for suite in operator.suites.values() for w in (*suite.check, *suite.workloads)}
    for workload in (w for shapes in found for w in shapes):
        operator.inputs(workload)  # raises for a shape that the operator has not
        assert math.prod(workload.dims.values()) <= lot.MEASURED.work
        assert tuple(workload.dims.values()) not in listed and lot.drawn_dims(workload.id) == workload.dims
    sizes = [w.dims["M"] for shapes in found for w in shapes]
    assert 1 in sizes and any(m % 2 for m in sizes if m > 1)


def test_as_many_shapes_are_drawn_as_cost_little():
    few, many = lot.Lot(40, 0, 1 << 14, 1 << 14, whole=2), lot.Lot(40, 0, 1 << 14, 1 << 14, whole=40)
    for one, least, most in ((few, 2, 39), (many, 40, 40)):
        shapes = lot.drawn(_request(softmax()), one)
        assert least <= len(shapes) <= most
        assert sum(2 * w.dims["M"] * w.dims["N"] for w in shapes[:-1]) <= one.whole * one.elements


def test_a_kernel_s_constraints_hold_for_what_is_drawn():
    operator = softmax()
    held = operator.kernels["seed"].source.replace(
        "CONSTRAINTS = {}", "CONSTRAINTS = {'N % 48 == 0': 'whole', 'M > 5': 'many'}"
    )
    asked = [dataclasses.replace(_request(operator, held, seed), within=("M % 2 == 1",)) for seed in range(4)]
    drawn = [w for one in asked for w in lot.drawn(one, SMALL)]
    assert all(w.dims["M"] % 2 for w in drawn), "and those of the table that it serves from"
    assert drawn and all(w.dims["N"] % 48 == 0 and w.dims["M"] > 5 for w in drawn)
    assert not lot.drawn(_request(operator, held.replace("M > 5", "M > unknown")), SMALL)


def _stage(wrong, asked, exact=False):
    def run(request, found):
        asked.append(",".join(w.id for w in request.checked))
        assert not request.measured and request.is_known("anything") is None
        verdicts = filter(None, (wrong(request, w) for w in request.checked))
        found.gates.append(GateReading(gate="o0", inputs="randn", value=1.0, passed=True))
        return next((Failure(v, "so") for v in verdicts), None)

    return lot.DrawnStage((SMALL, run), exact=exact)


def test_all_shapes_pass_together_and_are_noted():
    found, asked = Findings(), list[str]()
    assert _stage(lambda request, w: None, asked).run(_request(softmax()), found) is None
    assert len(asked) == 1 and asked[0].split(lot.PREFIX)[1:] and len(found.drawn) == SMALL.shapes
    assert len(found.gates) == 1 and not found.outside


def test_the_largest_shape_meets_every_kind_and_so_do_the_others_together():
    every = set(softmax().input_kinds)
    for seed in range(3):
        asked, met = _request(softmax(), seed=seed), []

        def run(request, found, met=met):
            assert [w.turn for w in request.checked] == list(range(3, 9)), "after those of the suite"
            met += [(math.prod(w.dims.values()), dealt_kinds(request, w, 3)) for w in request.checked]

        assert lot.DrawnStage((SMALL, run)).run(asked, Findings()) is None
        assert max(met)[0] == met[0][0] and [len(kinds) for _, kinds in met] == [len(every)] * 3 + [3] * 3
        assert {kind for _, kinds in met[3:] for kind in kinds} == every


def test_a_shape_lies_beyond_the_listed_ones():
    operator, found = load_operator("flash_attention/full"), 0
    for seed in range(20):
        asked = dataclasses.replace(
            _request(operator, operator.kernels["plain"].source, seed), target=load_target("tpu7x")
        )
        found += lot._ends_first(lot.drawn(asked, lot.MODELLED))[0].dims["T"] > 600  # 512 are timed
    assert found > 18


@pytest.mark.parametrize(
    ("verdict", "own", "refused"),
    [
        (Verdict.INCORRECT, None, True),
        (Verdict.CRASHED, None, True),
        (Verdict.TIMEOUT, Verdict.COMPILE_ERROR, True),
        (Verdict.INCORRECT, Verdict.INFRA_ERROR, True),
        (Verdict.INCORRECT, Verdict.INCORRECT, False),
        (Verdict.CRASHED, Verdict.CRASHED, False),
        (Verdict.COMPILE_ERROR, None, False),
        (Verdict.RESOURCE_ERROR, None, False),
    ],
)
def test_a_failure_counts_where_the_operator_s_own_kernel_is_right(verdict, own, refused):
    operator, found = softmax(), Findings()
    mine = operator.kernels["seed"].source + "\n# mine\n"

    def wrong(request, w):
        return (verdict if request.source == mine else own) if w.dims["N"] % 2 else None

    failure = _stage(wrong, []).run(_request(operator, mine), found)
    odd = [name for name in found.drawn if lot.drawn_dims(name)["N"] % 2]
    assert not odd
    if refused:
        assert failure is not None and failure.verdict is verdict and failure.reason.startswith(lot.PREFIX)
    else:
        assert failure is None and found.outside and found.drawn
        assert all(lot.drawn_dims(name)["N"] % 2 for name in found.outside)


def test_a_seed_that_is_wrong_everywhere_excuses_nothing():
    operator = softmax()
    mine = operator.kernels["seed"].source + "\n# mine\n"

    def wrong(request, w):
        return Verdict.INCORRECT if request.source != mine or w.dims["N"] % 2 else None

    assert _stage(wrong, []).run(_request(operator, mine), Findings()) is not None


@pytest.mark.parametrize("exact", [False, True])
def test_a_seed_s_text_with_other_parameters_may_serve_less_where_only_verified_shapes_are_served(exact):
    """Blocks of 64 rows leave the last of 100 rows unwritten, where the seed's 4 fit: M is a multiple of 64 then."""

    def wrong(request, w):
        return Verdict.INCORRECT if request.params.get("rows") == 64 and w.dims["M"] % 64 else None

    asked = _request(softmax())
    asked = dataclasses.replace(asked, params={**asked.params, "rows": 64})
    found = Findings()
    failure = _stage(wrong, [], exact).run(asked, found)
    assert (failure is None) is exact and bool(found.outside) is exact
    rewritten = dataclasses.replace(asked, source=asked.source + "\n# mine\n")
    assert _stage(wrong, [], exact).run(rewritten, Findings()) is not None, "a text of the search's own"


def test_a_fault_of_the_machinery_is_no_verdict_on_the_shape():
    found = Findings()
    failure = _stage(lambda request, w: Verdict.INFRA_ERROR, []).run(_request(softmax()), found)
    assert failure is not None and failure.verdict is Verdict.INFRA_ERROR and not found.outside


def test_an_operator_without_an_answer_is_not_asked():
    @dataclasses.dataclass(frozen=True)
    class Even:
        of: Operator

        def __getattr__(self, name):
            return getattr(self.of, name)

        def oracle(self, workload, inputs):
            if workload.dims["M"] % 2:
                raise ValueError("odd")
            return self.of.oracle(workload, inputs)

    even, found = Even(softmax()), Findings()
    assert _stage(lambda request, w: None, []).run(_request(even), found) is None
    assert found.drawn and all(lot.drawn_dims(name)["M"] % 2 == 0 for name in found.drawn)


def test_a_library_serves_what_lies_between_verified_shapes():
    def evaluation(drawn, outside=()):
        names = [tuple(lot.drawn_id({"M": m, "K": k}) for m, k in some) for some in (drawn, outside)]
        return Evaluation(
            genome="g",
            target="h200",
            suite="s",
            stage=Stage.MEASURE,
            verdict=Verdict.OK,
            fitness=1.0,
            drawn=names[0],
            outside=names[1],
        )

    rules = served_constraints([evaluation([(1, 256)], [(37, 192)]), evaluation([(90, 64)])], [{"M": 64, "K": 128}])
    legal = Legality(tuple(rules), {}).holds
    for dims, served in {
        (64, 128): True,
        (1, 64): True,
        (90, 256): True,
        (91, 128): False,
        (64, 320): False,
        (64, 32): False,
        (37, 192): False,
        (38, 192): True,
        (64, 96): False,
    }.items():
        assert legal({"M": dims[0], "K": dims[1]}) == served, dims
    alone = Legality(tuple(served_constraints([evaluation([(1, 256)])], [{"M": 64, "K": 128}], alone=True)), {}).holds
    assert {k for k in (128, 256, 512) if alone({"M": 64, "K": k})} == {128}, "a verified shape alone"
    assert alone({"M": 1, "K": 256}) and not alone({"M": 32, "K": 128})
