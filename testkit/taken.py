"""Operators as ``tune`` writes them, of functions in Triton (``exploits/taken.toml``): a softmax over rows, an
attention of few queries over many keys, a norm and its gradients, indices, integer codes."""

import functools
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tilewright.seeds.operator import SeedKernel, Suite, Workload
from tilewright.workers.intake.operator import Operand, Result, TakenOperator

HERE = Path(__file__).parent / "exploits" / "plain.py"


@functools.cache
def rows() -> Mapping[str, Mapping[str, Any]]:
    """What the table says of each, by its name. Kinds are those that ``tune`` found its kernel to bear."""
    return tomllib.loads(HERE.with_name("taken.toml").read_text(encoding="utf-8"))


def operator(name: str) -> TakenOperator:
    """A fresh one; its reference is torch's or a function of ``exploits/plain.py``."""
    row = rows()[name]
    timed, *shapes = (
        Workload("x".join(map(str, sizes)), dict(zip(row["dims"], sizes, strict=True)))
        for sizes in (row.get("timed", row["shapes"][-1]), *row["shapes"])
    )
    operands, results = (
        tuple(kind(**{**one, "shape": tuple(one["shape"])}) for one in row[key])
        for kind, key in ((Operand, "operands"), (Result, "results"))
    )
    reference = row["reference"]
    return TakenOperator(
        f"{name.replace(' ', '_')}_tuned/taken",
        reference if "." in reference else f"{HERE}:{reference}",
        row["call"],
        operands,
        results,
        {"small": Suite("small", workloads=(timed,), check=tuple(shapes))},
        {"seed": SeedKernel("seed", row["source"])},
        independent=tuple(row["independent"]),
        kinds=tuple(row["kinds"]),
        spread=row.get("spread", 4),
    )


softmax, attention = functools.partial(operator, "softmax"), functools.partial(operator, "attention")
