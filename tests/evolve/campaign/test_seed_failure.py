"""What ends a campaign whose seed fails: its own gate, or a target that cannot take it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tilewright.evolve.run import _seed_failure
from tilewright.fitness.evaluation import Evaluation, Stage, Verdict


@pytest.mark.parametrize(
    ("stage", "verdict", "words"),
    [
        (Stage.CHECK, Verdict.INCORRECT, "seeds: fused fails its own gate: incorrect at check, too bad."),
        (
            Stage.COMPILE,
            Verdict.RESOURCE_ERROR,
            "seeds: fused cannot start a campaign on gfx950: resource_error at compile, too bad.",
        ),
    ],
)
def test_the_seed_the_target_and_the_reason_are_named(stage: Stage, verdict: Verdict, words: str) -> None:
    found = Evaluation(
        genome="g", target="gfx950", suite="tiny", stage=stage, verdict=verdict, reason="too bad."
    )
    history = SimpleNamespace(evaluated=[(SimpleNamespace(index=0), found)])
    campaign = SimpleNamespace(history=history, plan=SimpleNamespace(starts=[SimpleNamespace(name="fused")]))
    assert _seed_failure(campaign) == words
