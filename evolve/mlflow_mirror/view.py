"""The view of one campaign that a link opens in MLflow: its candidates by rate, and charts of their rates.

MLflow keeps a shared view as JSON in a tag of the experiment, ``mlflow.sharedViewState.<key>``, and a link names the
key (seen in MLflow 3.17). The view works on any server and leaves each user's own view alone. Plain data, made without
MLflow.
"""

import json
from collections.abc import Iterable, Mapping, Sequence

from tilewright.evolve.space.genome import Value
from tilewright.fitness.evaluation import UNIT_SLUGS

TAG = "mlflow.sharedViewState."
LONGEST = 5000
"""Characters an experiment's tag may hold."""

PARAMETER_CHARTS = 4
"""Parameters that get a chart of their own."""

CHARTS_ABREAST = 2
"""MLflow's default of three leaves no room for the names of axes beside its side panel."""

RUN_NAME = "attributes.`Run Name`"

CLASSIC = "workflowType=machine_learning"
"""In a link: MLflow 3.17 shows a run below "Runs" rather than below "GenAI > Evaluation runs"."""
SECTION = "tilewright-charts"


def fitness_metric(unit: str, kind: str) -> str:
    """A candidate's metric of its rate, for example ``tflops_modelled``."""
    return f"{UNIT_SLUGS[unit]}_{kind}"


def gain_metric(kind: str) -> str:
    """A candidate's metric of its rate over the first seed's."""
    return f"gain_{kind}"


EVALUATION, FAILED = "progress/evaluation", "progress/failed"


def best_metric(unit: str, kind: str) -> str:
    """A candidate's metric of the best rate when its evaluation finished."""
    return f"progress/best_{fitness_metric(unit, kind)}"


def view_key(uid: str) -> str:
    """The key of a campaign's view, given the campaign's identity."""
    return f"tilewright-{uid}"


def page(experiment: str, uid: str) -> str:
    """The path of the view on a server."""
    return f"/#/experiments/{experiment}/runs?viewStateShareKey={view_key(uid)}&{CLASSIC}"


def run_page(experiment: str, run_id: str, file: str = "") -> str:
    """The path of a run's page on a server, or of one of its files."""
    place = f"/artifacts/{file}" if file else ""
    return f"#/experiments/{experiment}/runs/{run_id}{place}?{CLASSIC}"


def view_state(uid: str, unit: str, kind: str, parameters: Sequence[str]) -> str:
    """The tag's text: columns, order, filter and charts. ``parameters``: in the order of their charts."""
    while len(text := json.dumps(_state(uid, unit, kind, parameters))) > LONGEST and parameters:
        parameters = parameters[:-1]
    return text


def _state(uid: str, unit: str, kind: str, parameters: Sequence[str]) -> dict[str, object]:
    rate, gain = fitness_metric(unit, kind), gain_metric(kind)
    widths = {
        RUN_NAME: 200,
        f"metrics.`{rate}`": 9 * len(rate),
        f"metrics.`{gain}`": 9 * len(gain),
        "tags.`parents`": 90,
        "tags.`verdict`": 80,
        "tags.`mutation`": 90,
        "tags.`proposer`": 90,
    }
    return {
        "searchFilter": f"tags.`tilewright.uid` = '{uid}' and tags.`tilewright.candidate` != ''",
        "orderByKey": f"metrics.`{rate}`",
        "orderByAsc": False,
        "selectedColumns": [name for name in widths if name != RUN_NAME],
        "columnOrder": list(widths),
        "columnWidths": widths,
        "runsHiddenMode": "SHOW_ALL",
        "hideEmptyCharts": True,
        "isAccordionReordered": True,
        "compareRunSections": [
            {"uuid": SECTION, "name": "Campaign", "display": True, "isReordered": True, "columns": CHARTS_ABREAST}
        ],
        "compareRunCharts": _charts(rate, unit, kind, parameters),
    }


def _charts(rate: str, unit: str, kind: str, parameters: Sequence[str]) -> list[dict[str, object]]:
    charts = [
        _scatter("best", EVALUATION, best_metric(unit, kind)),
        _scatter("rate", EVALUATION, rate),
        _scatter("failed", EVALUATION, FAILED),
    ]
    charts += [_scatter(f"parameter {name}", name, rate, "PARAM") for name in parameters[:PARAMETER_CHARTS]]
    if parameters:
        axes = {"selectedParams": list(parameters), "selectedMetrics": [rate], "showAllRuns": False}
        charts.append({**_card("parameters", "PARALLEL"), **axes})
    return charts


def _scatter(name: str, x: str, y: str, across: str = "METRIC") -> dict[str, object]:
    """``y`` is a metric; ``across``: what ``x`` is, ``METRIC`` or ``PARAM``."""
    return {**_card(name, "SCATTER"), "xaxis": {"key": x, "type": across}, "yaxis": {"key": y, "type": "METRIC"}}


def _card(name: str, kind: str) -> dict[str, object]:
    return {
        "type": kind,
        "uuid": f"tilewright-{name}",
        "metricSectionId": SECTION,
        "deleted": False,
        "isGenerated": False,
        "runsCountToCompare": 100,
    }


def varied_parameters(points: Iterable[Mapping[str, Value]]) -> list[str]:
    """Parameters with at least two values, those of most values first."""
    values: dict[str, set[str]] = {}
    for name, value in (pair for params in points for pair in params.items()):
        values.setdefault(name, set()).add(repr(value))
    return sorted((name for name in values if len(values[name]) > 1), key=lambda name: -len(values[name]))
