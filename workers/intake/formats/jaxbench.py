"""The call of a JAXBench problem: the text of what its ``create_inputs`` makes, mostly without making it.

This module is a program, which runs the user's own file. It reads a request ``{"path"}`` as JSON from stdin and writes
``{"call"}`` or ``{"refusals"}``.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from tilewright.workers.intake.calls.call_text import DTYPES
from tilewright.workers.intake.child_program import Answer, Request, answer_request

MOST_MADE = 1 << 26
"""Elements up to which inputs are made, where integers among them have a bound to find."""


def call_of(path: Path) -> str:
    """As ``--args`` has it. Raises ValueError, and whatever the user's file raises."""
    import jax
    import numpy as np

    space: dict[str, Any] = {"__name__": "problem", "__file__": str(path)}
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), space)
    made = jax.eval_shape(space["create_inputs"])
    leaves = jax.tree_util.tree_leaves(made)
    integers = [leaf for leaf in leaves if np.issubdtype(leaf.dtype, np.integer)]
    if integers and sum(math.prod(leaf.shape) for leaf in leaves) <= MOST_MADE:
        made = space["create_inputs"]()

    def text_of(value: Any) -> str:
        if isinstance(value, tuple | list):
            return f"[{', '.join(map(text_of, value))}]"
        if not hasattr(value, "dtype"):
            return repr(value)
        dtype = str(value.dtype)
        if dtype not in DTYPES.values():
            raise ValueError(f"create_inputs makes {dtype}, which no call can hold")
        short = next(s for s, long in DTYPES.items() if long == dtype)
        text = f"{short}[{', '.join(map(str, value.shape))}]"
        if np.issubdtype(value.dtype, np.integer) and not isinstance(value, jax.ShapeDtypeStruct):
            return f"{text} < {int(value.max()) + 1}"
        return text

    return ", ".join(map(text_of, made if isinstance(made, tuple | list) else (made,)))


def answer_to(request: Request) -> Answer:
    """The call of the request's file."""
    return {"call": call_of(Path(request["path"]))}


if __name__ == "__main__":
    answer_request(answer_to)
