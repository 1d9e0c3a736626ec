"""The campaign's view in MLflow, in the size of a tag."""

import json

from hypothesis import given
from hypothesis import strategies as st

from testkit.evaluations import failed, passed
from tilewright.evolve.mlflow_mirror import view
from tilewright.evolve.mlflow_mirror.content import CampaignProgress
from tilewright.fitness.evaluation import Verdict


def test_parameters_that_were_varied_get_charts():
    tiles = [{"walk": w, "tile": t, "fixed": 1} for t in (1, 2, 4) for w in (True, False)]
    assert view.varied_parameters(tiles) == ["tile", "walk"] and view.varied_parameters([]) == []


@given(st.lists(st.text("abcdefgh_", min_size=1, max_size=200), unique=True, max_size=40))
def test_the_view_fits_a_tag_however_many_genes(genes):
    text = view.view_state("0123456789abcdef", "TFLOP/s", "modelled", genes)
    assert len(text) <= view.LONGEST
    state = json.loads(text)
    assert state["orderByKey"] == "metrics.`tflops_modelled`" and state["orderByAsc"] is False
    assert {"metrics.`gain_modelled`", "tags.`parents`"} <= set(state["selectedColumns"])


def test_a_candidate_carries_the_progress_of_its_campaign():
    progress = CampaignProgress("TFLOP/s", "modelled")
    made = [failed(), *(passed(fitness=rate) for rate in (200.0, 300.0, 250.0)), failed()]
    added = [progress.add(evaluation, is_seed=n < 2) for n, evaluation in enumerate(made)]
    assert added[0] == {"progress/evaluation": 1, "progress/failed": 1}
    assert [metrics.get("gain_modelled") for metrics in added] == [None, 1.0, 1.5, 1.25, None]
    assert progress.gain(passed(fitness=100.0)) == {"gain_modelled": 0.5}, "of one that ended before the seed"
    best = [metrics.get("progress/best_tflops_modelled") for metrics in added[1:]]
    assert best == [200, 300, 300, 300]
    assert (added[3]["progress/evaluation"], added[3]["progress/failed"]) == (4, 1)
    for verdict in (Verdict.DUPLICATE, Verdict.OUTPACED):
        progress.add(failed(verdict=verdict), is_seed=False)
    summary = {"campaign/evaluations_failed": 2, "campaign/best_tflops_modelled": 300.0}
    assert progress.campaign_metrics() == summary
