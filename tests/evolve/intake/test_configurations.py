"""A file's own autotune configurations are what its campaign tries first."""

import numpy as np
import pytest

from tests.evolve.intake import kernels
from tilewright.evolve.campaign.resolve import resolve
from tilewright.evolve.campaign.searcher import build_searcher
from tilewright.evolve.intake import folder, tune
from tilewright.evolve.record.archive import Archive
from tilewright.evolve.record.history import Candidate, History, Mutation, MutationKind
from tilewright.evolve.record.home import JOURNAL
from tilewright.evolve.record.journal import Journal
from tilewright.fitness.targets import load_target

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
def made(tmp_path_factory):
    root = kernels.write(tmp_path_factory.mktemp("tuned"))
    (root / "scaled.py").write_text(TUNED)
    (root / "twice.py").write_text("def twice(x):\n    return x * 2.0\n")
    request = tune.Request(root / "scaled.py", "scale", f"{root}/twice.py:twice", ("f32[1024]",))
    answer = tune.ask_intake(request, load_target("interpreter"))
    where = root / "scale_tuned"
    folder.write(where, "scale", request.reference, answer)
    return request, answer, where


def test_the_middle_one_is_the_seed_and_the_others_are_points(made):
    _, answer, _ = made
    assert (answer["defaults"]["BLOCK"], answer["defaults"]["num_warps"]) == (128, 4)
    assert [(p["BLOCK"], p["num_warps"]) for p in answer["points"]] == [(64, 2), (256, 8)]


def test_they_are_tried_before_anything_else(made, tmp_path):
    request, _, where = made
    resolved = resolve(tune.config_of(request, load_target("interpreter"), where, {"search.transfer": []}))
    (start,), given = resolved.starts, resolved.given
    assert [g.params["BLOCK"] for g in given] == [64, 256]
    archive, history = Archive(1, 1), History()
    journal = Journal(tmp_path / JOURNAL, create=True)
    searcher = build_searcher(resolved, archive, journal, tmp_path)
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
