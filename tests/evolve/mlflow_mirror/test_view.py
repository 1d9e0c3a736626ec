"""The campaign's view in MLflow: what it says is there, in order, and fits a tag."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from tilewright.evolve.mlflow_mirror import view
from tilewright.evolve.mlflow_mirror.content import CampaignProgress
from tilewright.fitness.evaluation import Evaluation, Stage, Verdict


def test_genes_that_explain_rates_come_first() -> None:
    rated = [
        ({"tile": tile, "walk": walk, "fixed": 1}, 100.0 * tile + walk)
        for tile in (1, 2, 4)
        for walk in (1, 2, 3)
    ]
    assert view.influential_parameters(rated) == ["tile", "walk"]
    assert view.influential_parameters([]) == []


def test_a_gene_with_a_value_a_candidate_explains_nothing() -> None:
    rated = [({"number": n, "tile": n % 2}, 100.0 + 50.0 * (n % 2)) for n in range(8)]
    assert view.influential_parameters(rated) == ["tile", "number"]


@given(
    st.lists(
        st.tuples(
            st.dictionaries(st.sampled_from("abc"), st.integers(0, 3)),
            st.floats(0.0, 1e9, allow_nan=False),
        ),
        max_size=12,
    )
)
def test_any_candidates_have_an_order(rated: list[tuple[dict[str, int], float]]) -> None:
    told = view.influential_parameters(rated)
    assert sorted(told) == sorted(set(told))
    assert all(
        len({repr(genes[name]) for genes, rate in rated if name in genes and rate > 0}) > 1 for name in told
    )


@given(st.lists(st.text("abcdefgh_", min_size=1, max_size=200), unique=True, max_size=40))
def test_the_view_fits_a_tag_however_many_genes(genes: list[str]) -> None:
    text = view.view_state("0123456789abcdef", "TFLOP/s", "modelled", genes)
    assert len(text) <= view.LONGEST
    state = json.loads(text)
    assert state["orderByKey"] == "metrics.`fitness_tflops_modelled`" and state["orderByAsc"] is False
    assert "gain_over_seed_modelled" in " ".join(state["selectedColumns"])


def evaluation(fitness: float | None) -> Evaluation:
    verdict = Verdict.OK if fitness else Verdict.INCORRECT
    return Evaluation(
        genome="g",
        target="tpu7x",
        suite="s",
        seed=0,
        verdict=verdict,
        stage=Stage.MEASURE,
        reason="" if fitness else "gate exact reads 3 dB",
        fitness=fitness,
    )


def test_a_candidate_says_how_the_campaign_stood() -> None:
    progress = CampaignProgress("TFLOP/s", "modelled")
    assert progress.add(evaluation(None), is_seed=True) == {"progress/evaluation": 1, "progress/failed": 1}
    first = progress.add(evaluation(200.0), is_seed=True)
    assert first["gain_over_seed_modelled"] == 1.0
    better, worse = (progress.add(evaluation(rate), is_seed=False) for rate in (300.0, 250.0))
    assert (better["gain_over_seed_modelled"], worse["gain_over_seed_modelled"]) == (1.5, 1.25)
    assert worse["progress/best_fitness_tflops_modelled"] == 300.0
    failed = progress.add(evaluation(None), is_seed=False)
    assert (
        failed["progress/best_fitness_tflops_modelled"] == 300.0 and "gain_over_seed_modelled" not in failed
    )
    assert (worse["progress/evaluation"], worse["progress/failed"]) == (4, 1)
