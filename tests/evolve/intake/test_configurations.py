"""A file's own autotune configurations are what its campaign tries first."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.evolve.intake import kernels
from tilewright.evolve.campaign.resolve import resolve
from tilewright.evolve.campaign.searcher import build_searcher
from tilewright.evolve.errors import UserError
from tilewright.evolve.intake import folder, tune
from tilewright.evolve.record.archive import Archive
from tilewright.evolve.record.history import Candidate, History, Mutation, MutationKind
from tilewright.evolve.record.home import JOURNAL
from tilewright.evolve.record.journal import Journal
from tilewright.fitness.targets import load_target
from tilewright.workers.intake.source.knobs import Knob
from tilewright.workers.intake.triton.kernel_module import MOST_CONFIGURATIONS, KernelModule
from tilewright.workers.intake.triton.kernel_text import Kernels

TUNED = """
import torch
import triton
import triton.language as tl


@triton.autotune(
    configs=[triton.Config({"BLOCK": 64}, num_warps=2), triton.Config({"BLOCK": 128}, num_warps=4),
             triton.Config({"BLOCK": 256}, num_warps=8)],
    key=["n"],
)
@triton.jit
def _scale(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) * 2.0, mask=at < n)


def scale(x):
    y = torch.empty_like(x)
    _scale[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, x.numel())
    return y
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory):
    root = kernels.write(tmp_path_factory.mktemp("tuned"))
    (root / "scaled.py").write_text(TUNED)
    (root / "twice.py").write_text("def twice(x):\n    return x * 2.0\n")
    request = tune.Request(root / "scaled.py", "scale", f"{root}/twice.py:twice", ("f32[1024]",))
    answer = tune.ask_intake(request, load_target("interpreter"))
    where = root / "scale_tuned"
    folder.write(where, "scale", request.reference, answer)
    return request, answer, where


def test_the_middle_one_is_the_seed_and_the_others_are_points(made) -> None:
    _, answer, _ = made
    assert (answer["defaults"]["BLOCK"], answer["defaults"]["num_warps"]) == (128, 4)
    assert [(p["BLOCK"], p["num_warps"]) for p in answer["points"]] == [(64, 2), (256, 8)]


def test_they_are_tried_before_anything_else(made, tmp_path: Path) -> None:
    request, _, where = made
    resolved = resolve(tune.config_of(request, load_target("interpreter"), where, {"search.transfer": []}))
    (start,), given = resolved.starts, resolved.given
    assert [g.params["BLOCK"] for g in given] == [64, 256]
    archive, history = Archive(1, 1), History()
    journal = Journal(tmp_path / JOURNAL, create=True)
    searcher = build_searcher(resolved, archive, journal, tmp_path).searcher
    seed = Candidate(0, start.genome, (), Mutation(MutationKind.SEED, "seed", ""), 0, 0)
    history.propose(seed)
    rng, tried = np.random.default_rng(0), []
    for index in (1, 2, 3):
        proposal = searcher.propose(history, 0, rng)
        assert proposal is not None
        tried.append(proposal)
        history.propose(Candidate(index, proposal.genome, proposal.parents, proposal.mutation, 1, 0))
    journal.close()
    assert [p.genome.id for p in tried[:2]] == [g.id for g in given]
    assert [p.mutation.proposer == "points" for p in tried] == [True, True, False]
    assert all(p.parents == (start.genome.id,) for p in tried[:2])


def test_a_parameter_that_the_kernel_has_not_is_told(made, tmp_path: Path) -> None:
    request, _, where = made
    text = (where / "operator.py").read_text()
    wrong = tmp_path / "scale_tuned"
    wrong.mkdir()
    (wrong / "kernels").symlink_to(where / "kernels")
    (wrong / "operator.py").write_text(text.replace('{"BLOCK": 64,', '{"BLOK": 64,'))
    config = tune.config_of(request, load_target("interpreter"), wrong, {})
    with pytest.raises(UserError, match=r"points: BLOK is no parameter \(allowed: BLOCK, num_warps"):
        resolve(config)


def test_of_a_long_list_a_spread_is_tried() -> None:
    values = tuple(range(1, 101))
    knob = Knob("BLOCK", 50, values, "configurations", "a", True, (*values, *values))
    plain = Knob("num_warps", 4, (2, 4), "an option", "b", True)
    taken = KernelModule("", [knob, plain], [], Kernels())
    points = taken.configurations({"BLOCK": values, "num_warps": (2, 4)}, {"BLOCK": 50, "num_warps": 4})
    blocks = [p["BLOCK"] for p in points]
    assert len(points) == MOST_CONFIGURATIONS and 50 not in blocks and blocks == sorted(set(blocks))
    assert blocks[0] == 1 and blocks[-1] > 90 and {p["num_warps"] for p in points} == {4}
    assert taken.configurations({"num_warps": (2, 4)}, {"num_warps": 4}) == []


def test_the_screen_is_folded_at_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    from tilewright.evolve.intake import preflight

    line = (
        "  knob       BLOCK_M = 32 of " + " ".join(str(1 << n) for n in range(3, 20)) + " (literal at line 7)"
    )
    monkeypatch.setattr(preflight, "lines", lambda *_: iter([line, "  target     here"]))
    made = list(preflight.screen({}, "", ""))
    assert len(made) == 3 and max(map(len, made)) <= 80 and made[0].startswith("  knob       BLOCK_M")
    assert made[1].startswith(" " * 13) and " ".join(made[0].split() + made[1].split()) == " ".join(
        line.split()
    )
