"""Dispatch tables from comparisons, and the paired statistics under them."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from testkit.evaluations import candidate, figures, passed
from tilewright.evolve.campaign import dispatch_table
from tilewright.evolve.campaign.conclusion import COMPARED, LOTS, conclude_measured, contenders
from tilewright.evolve.errors import UserError
from tilewright.evolve.record.history import History, MutationKind
from tilewright.evolve.space.genome import Genome
from tilewright.fitness.evaluation import FigureKind
from tilewright.seeds.catalogue import load_operator
from tilewright.seeds.operator import Workload
from tilewright.workers.device.comparison import CONTROL, Comparison

SHAPES = {
    name: Workload(name, {"M": m, "N": 4096, "K": 4096})
    for name, m in (("small", 1024), ("middle", 8192), ("large", 65536))
}


def comparison(times, noise=0.001):
    """Rounds around these seconds, by genome and workload."""
    rng = np.random.default_rng(1)

    def rounds(seconds):
        return [[seconds * (1 + noise * rng.standard_normal()) for _ in range(3)] for _ in range(6)]

    first = next(iter(times))
    named = {**times, CONTROL: times[first]}
    found = {w: {g: rounds(by_shape[w]) for g, by_shape in named.items()} for w in SHAPES}
    return Comparison("h200", {"device": "NVIDIA H200"}, found, {}, {})


EVEN = {"small": 1.0, "middle": 1.0, "large": 1.0}


@pytest.mark.parametrize(
    ("other", "noise", "earns"),
    [
        ({"large": 0.999}, 0.001, False),
        ({"small": 0.995, "large": 1.02}, 0.05, False),
        ({"small": 1.3, "large": 0.9}, 0.001, True),
    ],
    ids=["hardly faster", "faster within the noise", "clearly faster on one shape"],
)
def test_one_genome_serves_all_unless_another_earns_its_place(other, noise, earns):
    chosen = dispatch_table.choose(comparison({"a": EVEN, "b": {**EVEN, **other}}, noise))
    assert len({c.genome for c in chosen}) == 1 + earns
    if earns:
        assert [c.genome for c in chosen] == ["a", "a", "b"]
        assert chosen[2].low > 1.08 > 1.0 == chosen[0].ratio


def test_the_file_and_shapes_outside_it(tmp_path):
    operator = load_operator("gemm_fp8_blockwise/gemm_nt")
    even = {"small": 1e-4, "middle": 1e-3, "large": 1e-2}
    found = comparison({"a": even, "b": {**even, "large": 0.9e-2, "small": 1.3e-4}})
    genomes = {name: Genome("x = 1\n", {"stages": n}) for n, name in enumerate("ab")}
    made = dispatch_table.table(operator, list(SHAPES.values()), "primus-core", found, genomes)
    dispatch_table.write(made, tmp_path / dispatch_table.FILE)
    read = json.loads((tmp_path / dispatch_table.FILE).read_text())
    assert read == json.loads(json.dumps(made)) and read["format"] == dispatch_table.FORMAT
    assert [e["genome"] for e in read["entries"]] == ["a", "a", "b"]
    assert read["genomes"]["b"] == {"source": "x = 1\n", "params": {"stages": 1}}
    assert read["entries"][2]["figure"]["rate"] == pytest.approx(2 * 65536 * 4096**2 / 0.9e-2 / 1e12, rel=1e-2)
    numbers = {entry["genome"]: n for n, entry in enumerate(read["entries"])}
    assert len(dispatch_table.lines(read, numbers)) == 4


def grown_history():
    history = History()
    for index in range(30):
        special, kind = index == 29, MutationKind.SEED if index == 25 else MutationKind.PARAMETER
        made = candidate(index, Genome(f"x = {index}\n", {}), kind=kind, proposer=kind.value)
        seconds = {"one": 1.0 + 0.01 * index, "two": 0.5 if special else 1.0 + 0.01 * index}
        timed = [figures(w, s, kind=FigureKind.MEASURED) for w, s in seconds.items()]
        history.propose(made)
        history.integrate(made, passed(made.genome, *timed, fitness=100.0 - index))
    return history


def test_contenders_are_the_fittest_and_the_fastest_of_each_shape():
    chosen = contenders(grown_history(), most=8)
    assert len(chosen) == 8 and chosen[0].source == "x = 0\n"
    assert {"x = 29\n", "x = 25\n"} <= {genome.source for genome in chosen}, "the seed as well"


def test_where_no_contender_passes_the_next_best_are_measured(tmp_path):
    lots = []

    def compare(genomes, seed):
        lots.append([genome.source for genome in genomes])
        return Comparison("h200", {}, {}, {}, {genomes[0].id: "incorrect"})

    resolved, comparer = SimpleNamespace(config=SimpleNamespace(seed=3)), SimpleNamespace(compare=compare)
    with pytest.raises(UserError, match="final comparison failed: incorrect"):
        conclude_measured(resolved, grown_history(), comparer, None, tmp_path)
    assert [len(lot) for lot in lots] == [COMPARED] * LOTS and not {*lots[0]} & {*lots[1]}
    assert lots[1][0] == "x = 12\n", "the fittest of those that did not fail"
