"""The program that imports a winner's module and makes the recorded calls: ``why`` they fail, empty where they do not.

Where the original can be called as well, both must return the same structure, dtypes, shapes and strides, and values
that agree but for rounding.
"""

import contextlib
import importlib
import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.workers.intake.calls.call_text import Call, accepted_keywords, parse, python_value
from tilewright.workers.intake.calls.dimensions import tensor_places
from tilewright.workers.intake.calls.dtypes import is_float
from tilewright.workers.intake.child_program import Answer, Request, answer_request, first_line, loaded_module
from tilewright.workers.intake.judge.bounds import wrong
from tilewright.workers.intake.judge.inputs import draw
from tilewright.workers.intake.operator import Operand
from tilewright.workers.intake.source.load import package_of

MOST_COMPARED = 1 << 20
"""Most elements of a tensor that are compared, or twice as many."""

MOST_DRAWN = 1 << 21
"""Plain floats of an operand that are different."""


class _NotServed(Exception):
    """The module would give this call to the original."""


def answer_to(request: Request) -> Answer:
    """``why`` a call failed; ``calls`` that were made, as texts of their sizes. The parts of the package of the user's
    file ``of`` that cannot be imported here are placeholders, as they were when it was read in."""
    of = Path(request["of"])
    if of.suffix == ".py" and (package := package_of(of)) is not None:
        sys.meta_path.insert(0, package)
    module = loaded_module(Path(request["path"]))
    original = vars(module)["tilewright_original"]
    sys.path.append(
        str(Path(request["path"]).parent / module.SERVED["original"][1])
    )  # objects among the arguments are of classes there
    vars(module)["tilewright_original"] = _refuse
    operands = [Operand(row[0], row[1], tuple(row[2]), *row[3:]) for row in request["operands"]]
    calls = [parse(text) for text in request["calls"]]
    made: list[str] = []
    judged: Any = contextlib.nullcontext
    if os.environ.get("TRITON_INTERPRET") == "1" and not request["chip"]:
        # Plain, it takes no floats.
        from tilewright.workers.runners.triton.live_launch import interpreted as judged
    asked = [(calls[min(n, len(calls) - 1)], dims) for n, dims in enumerate(request["dims"])]
    for call, dims in asked:
        try:
            with judged():
                why = _call_error(module, request["function"], call, operands, dims, request["chip"], original)
        except _NotServed:
            continue
        except Exception as error:  # noqa: BLE001 - whatever the module raises
            without_device = type(error).__name__ == "NoDevice"  # CUDA C++ is compiled and cannot be run
            why = "" if without_device else first_line(error)
        if why:
            return {"why": why, "calls": made}
        made.append("x".join(map(str, dims.values())))
        if request["first"]:
            break
    return {"why": "" if made else "it serves none of the recorded calls", "calls": made}


def _refuse(served: object) -> Any:
    raise _NotServed


def _call_error(
    module: Any,
    name: str,
    call: Call,
    operands: Sequence[Operand],
    dims: Mapping[str, int],
    chip: Mapping[str, Any] | None,
    original: Any,
) -> str:
    """``chip``: the TPU that a function of JAX may ask for."""
    function = getattr(module, name)
    call = replace(call, keywords=accepted_keywords(function, call.keywords))
    arrays = [_quick_draw(operand, dims) for operand in operands]
    if chip:
        import jax

        from tilewright.workers.intake.pallas.original import on_chip

        shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in arrays]

        def called(*tensors: Any) -> Any:
            given, named = _arguments(call, tensors)
            return function(*given, **named)

        with on_chip(chip):
            jax.eval_shape(called, *shapes)
        return ""
    import torch
    from torch.utils._pytree import tree_leaves

    from tilewright.workers.runners.triton.tensors import to_torch

    place = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
    if module.SERVED["gradients"][0]:
        own = {o.name: to_torch(array, place) for o, array in zip(operands, arrays, strict=True)}
        if why := _unlike_halves(module, function, call, own):
            return why
    with torch.no_grad():
        one, other = ([to_torch(array, place) for array in arrays] for _ in range(2))
        found = function(*_arguments(call, one)[0], **_arguments(call, one)[1])
        try:
            given = _arguments(call, other)
            wanted = original(module.SERVED)(*given[0], **given[1])
        except Exception:  # noqa: BLE001 - it may want a device, or a package, that is not here
            return ""
    return _unlike(tree_leaves((found, one)), tree_leaves((wanted, other)), operands)


def _quick_draw(operand: Operand, dims: Mapping[str, int]) -> np.ndarray:
    """Plain floats of a large operand repeat those of a small one: to draw them takes seconds."""
    sizes, rng = operand.sizes(dims), np.random.default_rng(1)
    plain = is_float(operand.dtype) and not (operand.form or operand.values)
    few = replace(operand, shape=(MOST_DRAWN,)) if plain and math.prod(sizes) > MOST_DRAWN else operand
    return np.resize(draw(few, dims, "randn", 1, rng), sizes)


def _unlike_halves(module: Any, function: Any, call: Call, operands: Mapping[str, Any]) -> str:
    """What differs between a pair's outputs and gradients under torch's autograd and those that its ``launch`` returns,
    empty where nothing does."""
    import torch
    from torch.utils._pytree import tree_leaves

    from tilewright.workers.runners.triton.tensors import to_numpy

    with torch.no_grad():
        wanted = module.launch({n: t.clone() for n, t in operands.items()}, module.PARAMS)
    leaves = {n: t.clone() for n, t in operands.items()}
    for leaf in leaves.values():
        leaf.requires_grad_(leaf.is_floating_point())
    given, named = _arguments(call, list(leaves.values()))
    outputs = [t for t in tree_leaves(function(*given, **named)) if getattr(t, "requires_grad", False)]
    gradients = [t for n, t in operands.items() if n in module.GRADIENTS["given"]]
    if len(outputs) != len(gradients):
        return f"{len(outputs)} of its outputs have gradients, and {len(gradients)} must"
    torch.autograd.backward(outputs, gradients)
    found = dict(zip(module.GRADIENTS["given"].values(), outputs, strict=True))
    found.update({number: leaves[name].grad for name, number in module.GRADIENTS["gradients"].items()})
    for number, tensor in found.items():
        if tensor is None or tensor.shape != wanted[number].shape:
            return f"result {number} of its halves is not its launch's"
        arrays = [to_numpy(_some(t.detach())) for t in (tensor, wanted[number].to(tensor.dtype))]
        if why := wrong(arrays[:1], [arrays[1].astype(np.float64)]):
            return f"its halves and its launch differ: {why.replace('result 0', f'result {number}')}"
    return ""


def _unlike(found: Sequence[Any], wanted: Sequence[Any], operands: Sequence[Operand]) -> str:
    from tilewright.workers.runners.triton.tensors import to_numpy

    def kind(value: Any) -> str:
        if not hasattr(value, "stride"):
            return repr(value)
        return f"{value.dtype}{list(value.shape)} strides {value.stride()}"

    for number, (one, other) in enumerate(zip(found, wanted, strict=False)):
        if kind(one) != kind(other):
            return f"value {number} is {kind(one)}, and the original's {kind(other)}"
    tensors = [[to_numpy(_some(v)) for v in side if hasattr(v, "stride")] for side in (found, wanted)]
    answers = [a if a.dtype.kind in "iub" else a.astype(np.float64) for a in tensors[1]]
    differ = "" if len(found) == len(wanted) else f"{len(found)} values, and the original's {len(wanted)}"
    return differ or wrong(tensors[0], answers, operands)


def _some(tensor: Any) -> Any:
    """Elements of a tensor, evenly spaced: the campaign has judged every answer, what is compared here is the call."""
    flat = tensor.contiguous().reshape(-1)
    return flat[:: flat.numel() // MOST_COMPARED | 1].contiguous()


def _arguments(call: Call, tensors: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
    """A call's arguments and keywords, with these tensors in the order of its own; a pair's gradients come after."""
    places = [place for _, place in tensor_places([call], [""] * len(call.arguments))]
    at = {
        place: tensor.permute(known.order) if known.order else tensor
        for place, known, tensor in zip(places, call.tensors(), tensors, strict=False)
    }
    listed = tuple if type(tensors[0]).__module__.startswith("jax") else list
    given = [python_value(v, (n,), at, listed) for n, v in enumerate(call.arguments)]
    return given, {k: python_value(v, (k,), at, listed) for k, v in call.keywords.items()}


if __name__ == "__main__":
    for imported in sys.argv[1:]:  # before there is a question: it takes seconds
        importlib.import_module(imported)
    answer_request(answer_to)
