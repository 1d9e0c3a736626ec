"""The view of one campaign that a link opens in MLflow: its candidates by rate, and the charts that tell the story.

MLflow keeps a shared view as JSON in a tag of the experiment, ``mlflow.sharedViewState.<key>``, and a link names the
key (seen in MLflow 3.17). So it works on anybody's server, and nobody's own view changes. Plain data, made without
MLflow.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tilewright.evolve.space.genome import Value
from tilewright.fitness.evaluation import UNIT_SLUGS

TAG = "mlflow.sharedViewState."
LONGEST = 5000
"""Characters an experiment's tag may hold."""

GENES = 4
"""Genes that get a chart of their own."""

CHARTS_ABREAST = 2
"""Three, MLflow's own choice, leave no room for the names of axes beside its side panel."""

RUN_NAME = "attributes.`Run Name`"
SECTION = "tilewright-story"


def fitness_metric(unit: str, kind: str) -> str:
    """A candidate's metric of its rate, for example ``fitness_tflops_modelled``."""
    return f"fitness_{UNIT_SLUGS[unit]}_{kind}"


def gain_metric(kind: str) -> str:
    """A candidate's metric of its rate over that of the first seed."""
    return f"gain_over_seed_{kind}"


EVALUATION, FAILED = "progress/evaluation", "progress/failed"


def best_metric(unit: str, kind: str) -> str:
    """A candidate's metric of the best rate when its evaluation came in."""
    return f"progress/best_{fitness_metric(unit, kind)}"


def view_key(uid: str) -> str:
    """The key of a campaign's view, given the campaign's identity."""
    return f"tilewright-{uid}"


def page(experiment: str, uid: str) -> str:
    """What follows a server's address in the link that opens the view."""
    return f"/#/experiments/{experiment}/runs?viewStateShareKey={view_key(uid)}&workflowType=machine_learning"


def view_state(uid: str, unit: str, kind: str, genes: Sequence[str]) -> str:
    """The tag's text: columns, order, filter and charts. ``genes``: by how much they tell, most first."""
    while len(text := json.dumps(_state(uid, unit, kind, genes))) > LONGEST and genes:
        genes = genes[:-1]
    return text


def _state(uid: str, unit: str, kind: str, genes: Sequence[str]) -> dict[str, Any]:
    rate, gain = fitness_metric(unit, kind), gain_metric(kind)
    widths = {
        RUN_NAME: 240,
        f"metrics.`{rate}`": 150,
        f"metrics.`{gain}`": 110,
        "tags.`verdict`": 100,
        "tags.`mutation`": 100,
        "tags.`proposer`": 100,
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
            {
                "uuid": SECTION,
                "name": "Campaign",
                "display": True,
                "isReordered": True,
                "columns": CHARTS_ABREAST,
            },
        ],
        "compareRunCharts": _charts(rate, unit, kind, genes),
    }


def _charts(rate: str, unit: str, kind: str, genes: Sequence[str]) -> list[dict[str, Any]]:
    drawn = [
        _scatter("best", EVALUATION, best_metric(unit, kind)),
        _scatter("rate", EVALUATION, rate),
        _scatter("failed", EVALUATION, FAILED),
    ]
    drawn += [_scatter(f"gene {gene}", gene, rate, across="PARAM") for gene in genes[:GENES]]
    if genes:
        drawn.append(
            {
                **_card("genes", "PARALLEL"),
                "selectedParams": list(genes),
                "selectedMetrics": [rate],
                "showAllRuns": False,
            }
        )
    return drawn


def _scatter(name: str, x: str, y: str, across: str = "METRIC") -> dict[str, Any]:
    """``y`` is a metric; ``across``: what ``x`` is, ``METRIC`` or ``PARAM``."""
    return {
        **_card(name, "SCATTER"),
        "xaxis": {"key": x, "type": across},
        "yaxis": {"key": y, "type": "METRIC"},
    }


def _card(name: str, kind: str) -> dict[str, Any]:
    return {
        "type": kind,
        "uuid": f"tilewright-{name}",
        "metricSectionId": SECTION,
        "deleted": False,
        "isGenerated": False,
        "runsCountToCompare": 100,
    }


def telling_genes(rated: Iterable[tuple[Mapping[str, Value], float]]) -> list[str]:
    """Genes with at least two values, by the share of the variance of the log of rates that their values explain.

    ``rated``: genes and rate of each candidate that has one. With no rates at all: none.
    """
    rows = [(genes, math.log(rate)) for genes, rate in rated if rate > 0]
    shares = {name: _explained(name, rows) for name in dict.fromkeys(n for genes, _ in rows for n in genes)}
    told = [name for name, share in shares.items() if share is not None]
    return sorted(told, key=lambda name: -(shares[name] or 0.0))


def _explained(name: str, rows: Sequence[tuple[Mapping[str, Value], float]]) -> float | None:
    """The correlation ratio (eta squared) of a gene, less what as many values explain by chance."""
    groups: dict[str, list[float]] = {}
    for genes, value in rows:
        if name in genes:
            groups.setdefault(repr(genes[name]), []).append(value)
    values = [value for group in groups.values() for value in group]
    if len(groups) < 2:
        return None
    mean = sum(values) / len(values)
    whole = sum((value - mean) ** 2 for value in values)
    if whole == 0.0:
        return 0.0
    between = sum(len(group) * (sum(group) / len(group) - mean) ** 2 for group in groups.values())
    freedom = len(values) - len(groups)
    if freedom <= 0:
        return 0.0
    return 1.0 - (1.0 - between / whole) * (len(values) - 1) / freedom
