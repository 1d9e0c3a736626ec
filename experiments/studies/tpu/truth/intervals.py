"""The ends of the model's intervals by class, from the rows of a truth set, and what rows of a left-out family say.

A family is one kind of kernel on one chip. An interval has to hold kernels that nobody measured, so each row is judged
by the ends that the other families give: nothing of its own family went into them.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.fitness.tpu.time_model import COVERAGE, ERRORS

ALIKE: Mapping[str, tuple[str, ...]] = {"memory": ("memory", "vector"), "vector": ("memory", "vector")}
"""Classes that are taken together: few rows are bound by memory."""

Facts = Sequence[Mapping[str, Any]]


def family(row: Mapping[str, Any]) -> tuple[str, str]:
    return row["chip"], row["kind"]


def ends(rows: Facts, kind: str) -> tuple[float, float]:
    """log(real / modelled), lower and upper end for a class: the widest of what each family's own rows say."""
    families = defaultdict(list)
    for row in rows:
        if row["class"] in ALIKE.get(kind, (kind,)):
            families[family(row)].append(-np.log1p(row["error"]))
    tail = (1 - COVERAGE) / 2
    points = [np.quantile(errors, [tail, 1 - tail]) for errors in families.values()]
    return float(min(p[0] for p in points)), float(max(p[1] for p in points))


def held_left_out(row: Mapping[str, Any], rows: Facts) -> bool:
    """Whether a row lies in the interval that the rows of other families give."""
    low, high = ends([other for other in rows if family(other) != family(row)], row["class"])
    return bool(low <= -np.log1p(row["error"]) <= high)


def table(rows: Facts) -> list[str]:
    """The ends in use, those of all rows, and the share of left-out rows that lie in theirs, in Markdown."""
    head = ["class", "in use", "all families say", "families", "rows", "held", "rows not fitted", "held"]
    lines = ["| " + " | ".join(head) + " |", "| " + " | ".join("---" for _ in head) + " |"]
    for kind in (*ERRORS, "all"):
        of = [row for row in rows if kind in (row["class"], "all")]
        rest = [row for row in of if not row["fitted"]]
        pairs = [] if kind == "all" else [ERRORS[kind], ends(rows, kind)]
        ranges = [f"{low:+.3f} to {high:+.3f}" for low, high in pairs] or ["", ""]
        shares = [f"{np.mean([row['held'] for row in part]):.0%}" if part else "" for part in (of, rest)]
        cells = [kind, *ranges, len({family(row) for row in of}), len(of), shares[0], len(rest), shares[1]]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return lines
