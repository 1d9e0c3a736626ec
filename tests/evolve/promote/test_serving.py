"""Who is evaluated where: kernels that are legal, or chosen by the library's dispatch, on a part of a suite only."""

import json
import shutil

import pytest

from testkit.promote_campaign import CHILD, FAMILY, OPERATOR, one_sentence, run, write_campaign
from tilewright.evolve.promote.command import Options
from tilewright.evolve.promote.library_writer import LibraryWriter
from tilewright.evolve.promote.verify import Refusal
from tilewright.evolve.space.genome import Genome
from tilewright.fitness.evaluation import Verdict

RULED = "K % block_k == 0"
SHORT, ODD = "256x256x512", "256x256x768"
"""The winner's block_k of 512 divides the first one's K only."""


@pytest.fixture
def family(tmp_path):
    """The small GEMM, whose tiled kernel says what it cannot do, with a suite of which it can do a half."""
    folder = tmp_path / "ruled"
    shutil.copytree(FAMILY, folder, ignore=shutil.ignore_patterns("__pycache__"))
    kernel, operator = folder / "kernels" / "tiled.py", folder / "operator.py"
    rule = f"CONSTRAINTS = {{{RULED!r}: 'whole steps'}}"
    kernel.write_text(kernel.read_text().replace("CONSTRAINTS = {}", rule))
    shapes = "(workload(256, 256, 512), workload(256, 256, 768))"
    checked = "(workload(128, 128, 512), workload(128, 128, 256))"
    suites = f'{{"tiny": tiny, "mixed": Suite("mixed", {shapes}, {checked})}}'
    text = operator.read_text().replace("check=(workload(128, 128, 256),)", "check=(workload(128, 128, 512),)")
    operator.write_text(text.replace('{"tiny": tiny}', suites))
    return folder


def genome(family, **params):
    return Genome((family / "kernels" / "tiled.py").read_text(), {**CHILD.params, **params})


def promoted(family, home, writer, target="tpu7x"):
    """A campaign whose winner, of block_k 512, is in the library; then a candidate that divides every K."""
    winner, other = genome(family), genome(family, block_k=256)
    genomes = (genome(family, block_k=128), winner, other)
    folder = write_campaign(home, family=family, genomes=genomes, winner=winner, target=target)
    run(folder, writer, seconds=lambda g, workload: 5e-5 if g == winner else 1e-4)
    return folder, winner, other


def test_a_kernel_of_the_library_serves_where_it_is_surely_the_fastest(family, tmp_path):
    """Also where another one serves so far, and where none of the nominated is faster."""
    writer = LibraryWriter(tmp_path / "library")
    first, second = genome(family, block_k=128), genome(family, block_k=256)
    third = genome(family, block_k=256, block_m=128)
    genomes = (first, second, third)
    folder = write_campaign(tmp_path / "home", family=family, genomes=genomes, winner=first, target="h200")

    def served(number, seconds):
        judgement = run(folder, writer, Options(candidate=number, suite="mixed"), seconds).judgement
        regions = writer.version(OPERATOR)[2]["targets"]["h200"]["regions"]
        return [r["kernel"] for r in regions], [shape.gain for shape in judgement.shapes]

    assert served("0", lambda g, _: 5e-5 if g == first else 1e-4)[0] == [first.id, first.id]
    times = {(second.id, ODD): 3e-5, (first.id, ODD): 5e-5, (first.id, SHORT): 5e-5}
    assert served("1", lambda g, w: times.get((g.id, w), 1e-4))[0] == [first.id, second.id]
    times = {first.id: 2e-5, second.id: 4e-5}
    kernels, gains = served("2", lambda g, _: times.get(g.id, 5e-5))
    assert kernels == [first.id, first.id] and gains == pytest.approx([1.0, 2.0], rel=0.01)


def test_on_a_device_everyone_is_compared_where_it_serves(family, tmp_path):
    writer = LibraryWriter(tmp_path / "library")
    folder, winner, other = promoted(family, tmp_path / "home", writer, "h200")

    def seconds(g, workload):
        assert g != winner or workload != ODD, "timed where it does not serve"
        return {winner.id: 5e-5, other.id: 4e-5}.get(g.id, 1e-4)

    judgement = run(folder, writer, Options(candidate="2", suite="mixed"), seconds).judgement
    gains = {shape.figures.workload: shape.gain for shape in judgement.shapes}
    assert gains == {SHORT: pytest.approx(5 / 4, rel=0.05), ODD: pytest.approx(10 / 4, rel=0.05)}


def test_a_nominated_kernel_must_serve_what_it_is_promoted_for(family, tmp_path):
    writer = LibraryWriter(tmp_path / "library")
    folder, *_ = promoted(family, tmp_path / "home", writer)
    before = writer.index(OPERATOR)["current"]
    with pytest.raises(Refusal) as refused:
        run(folder, writer, Options(suite="mixed", force_reason="I insist"))
    text = str(refused.value)
    assert one_sentence(text)
    assert f"candidate 1 does not serve {ODD}: whole steps (K % block_k == 0)" in text
    assert writer.index(OPERATOR)["current"] == before


def test_shapes_of_a_candidate_that_fails_go_to_the_next_best(family, tmp_path):
    """And its failure is told in the receipt; without another that is legal there, the promotion is refused."""
    writer = LibraryWriter(tmp_path / "library")
    folder, winner, other = promoted(family, tmp_path / "home", writer)
    table = tmp_path / "table.json"

    def spoil(failing):
        wrong = {"verdict": Verdict.INCORRECT, "reason": "gate exact on outliers: 3.0 dB"}
        return lambda job, found: found.model_copy(update=wrong) if job.genome == failing else found

    third = genome(family, block_k=128)
    entries = [(SHORT, third.id), (ODD, other.id)]
    table.write_text(json.dumps({"entries": [{"workload": w, "genome": g} for w, g in entries]}))
    options = Options(suite="mixed", table=table, against="whole")
    ours = (third, winner, other)

    def seconds(g, workload):
        return 5e-5 if g in ours else 1e-4

    judgement = run(folder, writer, options, seconds, spoil(third)).judgement
    assert [shape.genome for shape in judgement.shapes] == [other.id, other.id]
    _, receipt, dispatch = writer.version(OPERATOR)
    refusals = receipt["targets"]["tpu7x"]["refused"]
    assert list(refusals) == ["candidate 0"] and "gate exact on outliers" in refusals["candidate 0"]
    assert third.id not in dispatch["targets"]["tpu7x"]["kernels"]
    entries = [(SHORT, winner.id), (ODD, other.id)]
    table.write_text(json.dumps({"entries": [{"workload": w, "genome": g} for w, g in entries]}))
    with pytest.raises(Refusal, match="candidate 2 fails its re-verification"):
        run(folder, writer, options, seconds, spoil(other))  # the winner is not legal at the odd shape
