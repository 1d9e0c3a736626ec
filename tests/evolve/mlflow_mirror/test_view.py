"""The campaign's view in MLflow: influential parameters first, in the size of a tag."""

import json

from hypothesis import given
from hypothesis import strategies as st

from tilewright.evolve.mlflow_mirror import view
from tilewright.evolve.mlflow_mirror.content import CampaignProgress
from tilewright.fitness.evaluation import Evaluation, Stage, Verdict


def test_parameters_that_explain_rates_come_first():
    tiles = [({"tile": t, "walk": w, "fixed": 1}, 100.0 * t + w) for t in (1, 2, 4) for w in (1, 2, 3)]
    numbered = [({"number": n, "tile": n % 2}, 100.0 + 50.0 * (n % 2)) for n in range(8)]
    for rated, expected in (
        (tiles, ["tile", "walk"]),
        (numbered, ["tile", "number"]),  # a value for each candidate explains nothing
        ([], []),
    ):
        assert view.influential_parameters(rated) == expected


@given(st.lists(st.text("abcdefgh_", min_size=1, max_size=200), unique=True, max_size=40))
def test_the_view_fits_a_tag_however_many_genes(genes):
    text = view.view_state("0123456789abcdef", "TFLOP/s", "modelled", genes)
    assert len(text) <= view.LONGEST
    state = json.loads(text)
    assert state["orderByKey"] == "metrics.`tflops_modelled`" and state["orderByAsc"] is False
    assert {"metrics.`gain_modelled`", "tags.`parents`"} <= set(state["selectedColumns"])


def test_a_candidate_carries_the_progress_of_its_campaign():
    def evaluation(fitness: float | None, verdict: Verdict = Verdict.INCORRECT) -> Evaluation:
        verdict, reason = (Verdict.OK, "") if fitness else (verdict, "gate exact reads 3 dB")
        common = {"genome": "g", "target": "tpu7x", "suite": "s", "stage": Stage.MEASURE}
        return Evaluation(**common, verdict=verdict, reason=reason, fitness=fitness)

    progress = CampaignProgress("TFLOP/s", "modelled")
    rates = (None, 200.0, 300.0, 250.0, None)
    added = [progress.add(evaluation(rate), is_seed=n < 2) for n, rate in enumerate(rates)]
    assert added[0] == {"progress/evaluation": 1, "progress/failed": 1}
    assert [metrics.get("gain_modelled") for metrics in added] == [None, 1.0, 1.5, 1.25, None]
    assert progress.gain(evaluation(100.0)) == {"gain_modelled": 0.5}, "of one that ended before the seed"
    assert [metrics.get("progress/best_tflops_modelled") for metrics in added[1:]] == [
        200,
        300,
        300,
        300,
    ]
    assert (added[3]["progress/evaluation"], added[3]["progress/failed"]) == (4, 1)
    progress.add(evaluation(None, Verdict.DUPLICATE), is_seed=False)
    progress.add(evaluation(None, Verdict.OUTPACED), is_seed=False)
    assert progress.campaign_metrics() == {
        "campaign/evaluations_failed": 2,
        "campaign/best_tflops_modelled": 300.0,
    }
