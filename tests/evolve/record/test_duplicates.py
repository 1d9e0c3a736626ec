"""What is presumed to compile alike, and what makes the presumption go away."""

import pytest

from testkit.evaluations import candidate, passed
from tilewright.evolve.record.duplicates import OFTEN, VERIFIED, is_verified
from tilewright.evolve.record.history import History, MutationKind
from tilewright.evolve.space.genome import Genome

HINT = "triton_cache_hint: consume: {} on gl.load(after)"


class Compiler:
    """A history, and a compiler that says what each genome compiles to.

    Sources ``plain`` and ``hinted`` differ in a hint that counts with ``early`` alone; ``stages`` count where a loop is
    ``piped``.
    """

    def __init__(self):
        self.history = History()

    def genome(self, source, **params):
        return Genome(source, {"early": False, "piped": False, "stages": 1, "block": 64, **params})

    def artefact(self, source, params):
        hint = source != "plain" and params["early"]
        stages = params["stages"] if params["piped"] else 0
        return f"{hint and source} {params['block']} {params['early']} {stages}"

    def add(self, genome, parent=None, detail=""):
        kind = MutationKind.REWRITE if parent else MutationKind.PARAMETER
        parents = (parent.id,) if parent else ()
        place = len(self.history.candidates)
        made = candidate(place, genome, parents=parents, kind=kind, detail=detail)
        self.history.propose(made)
        artefact = self.artefact(genome.source, genome.params)
        self.history.integrate(made, passed(genome, artefact=artefact))

    def passed_over(self, source, **params):
        """Whether so at a point that is none of those verified; blocks stand for all that has no part in it."""
        return self.history.tried(self.genome(source, **params))


@pytest.fixture(autouse=True)
def nothing_verified(monkeypatch):
    monkeypatch.setattr("tilewright.evolve.record.history.is_verified", lambda genome: False)


@pytest.fixture
def compiler():
    return Compiler()


def test_sources_that_compiled_alike_are_presumed_to_at_points_that_one_was_tried_at(compiler):
    for block in range(OFTEN):
        compiler.add(compiler.genome("plain", block=block))
        assert not compiler.passed_over("hinted", block=block), "too little is known of it"
        compiler.add(compiler.genome("hinted", block=block))
    compiler.add(compiler.genome("plain", block=128))
    assert compiler.passed_over("hinted", block=128)
    assert not compiler.passed_over("hinted", block=256), "neither was tried there"
    assert not compiler.passed_over("other", block=128), "another source"


def test_the_nearest_point_decides_whether_two_sources_are_alike(compiler):
    for source in ("plain", "hinted"):
        compiler.add(compiler.genome(source, early=True))
        compiler.add(compiler.genome(source))
        compiler.add(compiler.genome(source, block=128, stages=2))
    compiler.add(compiler.genome("plain", block=128))
    compiler.add(compiler.genome("plain", early=True, block=128))
    assert compiler.passed_over("hinted", block=128)
    assert not compiler.passed_over("hinted", early=True, block=128)


def test_values_of_a_parameter_that_did_not_matter_are_one(compiler):
    for piped in (False, True):
        for stages in (1, 2, 3):
            compiler.add(compiler.genome("plain", piped=piped, stages=stages))
    for stages in (1, 2, 3):
        compiler.add(compiler.genome("plain", block=128, early=True, stages=stages))
    compiler.add(compiler.genome("plain", block=128))
    compiler.add(compiler.genome("plain", block=128, piped=True))
    assert compiler.passed_over("plain", block=128, stages=3)
    assert not compiler.passed_over("plain", block=128, stages=4), "a value nobody has seen"
    assert not compiler.passed_over("plain", block=128, stages=3, piped=True)
    assert not compiler.passed_over("plain", block=256, stages=3), "another block is another kernel"


def test_an_edit_that_changed_nothing_is_presumed_to_change_nothing_where_it_is_near(compiler):
    parent, detail = compiler.genome("plain"), HINT.format("evict_last")
    compiler.add(parent)
    for number in range(OFTEN):
        compiler.add(compiler.genome(f"hinted {number}"), parent, detail)
    rewritten = compiler.genome("with another hint")
    again = HINT.format("evict_first")
    assert compiler.history.tried(rewritten, (parent, again)), "another hint at the same place"
    assert not compiler.history.tried(rewritten, (parent, "triton_launch_option: kernel: choose maxnreg"))
    assert not compiler.history.tried(rewritten, (parent, f"{again}; then triton_x: kernel: y"))
    early = compiler.genome("plain", early=True)
    compiler.add(early)
    compiler.add(compiler.genome("hinted", early=True), early, detail)
    elsewhere = compiler.genome("with another hint", early=True)
    assert not compiler.history.tried(elsewhere, (early, again)), "there it did change the code"
    assert compiler.history.tried(rewritten, (parent, again))


def test_one_of_so_many_is_compiled_whatever_is_presumed():
    genomes = [Genome("plain", {"block": n}) for n in range(800)]
    share = sum(map(is_verified, genomes)) / len(genomes)
    assert abs(share - 1 / VERIFIED) < 0.05


def test_long_campaigns_forget_what_is_old(compiler, monkeypatch):
    monkeypatch.setattr("tilewright.evolve.record.duplicates.HELD", 8)
    for block in range(30):
        compiler.add(compiler.genome("plain", block=block))
        compiler.add(compiler.genome("hinted", block=block))
    compiler.add(compiler.genome("plain", block=30))
    assert compiler.passed_over("hinted", block=30)
    model = compiler.history._duplicates
    assert len(model._at) == 8
    assert all(len(points) <= 8 for points in model._points.values())
