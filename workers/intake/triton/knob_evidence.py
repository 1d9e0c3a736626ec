"""What runs say of knobs and dimensions: which only tile, and along which the reference works by itself."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from tilewright.workers.intake.judge.reference import to_tensor
from tilewright.workers.intake.operator import Result, TakenOperator
from tilewright.workers.intake.source.knobs import Knob
from tilewright.workers.intake.triton.call_site import (
    Oracle,
    Site,
)
from tilewright.workers.intake.triton.interpreter_run import Running
from tilewright.workers.intake.triton.kernel_module import Taken
from tilewright.workers.intake.triton.trial import (
    Shape,
    id_of,
)

EVIDENCE_SECONDS = 25.0

LEAST_TILE = 16
"""Side of the smallest tile that a matrix unit takes: below it a tile of a product does not compile."""


def operator_of(
    request: Mapping[str, Any], site: Site, reference: Oracle, results: Sequence[Result], spread: int
) -> TakenOperator:
    judge_of = (request["reference"], reference.call, tuple(site.operands), tuple(results))
    return TakenOperator("taken/one", *judge_of, {}, {}, reference.precision, (), {}, ("randn",), spread)


def evidence(site: Site, taken: Taken, module: Any, defaults: Mapping[str, Any], shapes: Sequence[Shape],
             operator: TakenOperator, wide: Shape | None, deep: Callable[[], Shape | None]
             ) -> tuple[dict[str, tuple[Any, ...]], list[dict[str, Any]]]:  # fmt: skip
    """Which knobs only tile: other values give answers that pass. Those that do not stay as they are.

    ``wide``: a shape of several tiles, on which the values next to the default must pass, too; echoes that must change
    with a knob there are noted as its ties. ``deep``: gives a shape as long in one dimension as the call's, for knobs
    that change nothing on small ones, such as the largest block.
    """
    from tilewright.fitness.gates import failure, read_gates

    began = time.monotonic()
    at_once = max(1, len(os.sched_getaffinity(0)) // len(shapes))
    space: dict[str, tuple[Any, ...]] = {}
    fixed: list[dict[str, Any]] = []
    products = any("tl.dot(" in text.text for text in taken.kernels.functions.values())
    said = {knob.name: uses(taken, knob) for knob in taken.knobs}
    probe = min(shapes, key=lambda s: sum(a.size for a in s.inputs["randn"].values()))

    def started(params: Mapping[str, Any], shape: Shape) -> Running:
        return Running(module, params, shape.inputs["randn"])

    def passes(running: Running, shape: Shape) -> bool:
        try:
            outputs = running.outputs()
        except Exception:  # noqa: BLE001 - a value that does not work is no knob's
            return False
        named = {r.name: o for r, o in zip(operator.results, outputs, strict=True)}
        from tilewright.workers.intake.operator import as_result

        wanted = {
            r.name: {r.name: as_result(shape.answers["randn"][r.place], r.dtype)} for r in operator.results
        }
        return failure(read_gates(operator.gates, named, wanted, "randn"), operator.gates) is None

    def bound(knob: Knob) -> tuple[tuple[str, ...], list[int]] | None:
        """Echoes that must follow a knob for its neighbours to pass at several tiles, and the values on those sides of
        the default where they do; None where they never do."""
        same = [k.name for k in taken.knobs if k.echo and k.default == knob.default]
        if wide is None:
            return None if same else ((), list(knob.values))
        below, above = (
            [v for v in knob.values if v < knob.default],
            [v for v in knob.values if v > knob.default],
        )
        ways = [(), *((name,) for name in same), *([tuple(same)] if len(same) > 1 else [])]
        found: tuple[tuple[str, ...], list[int]] | None = None
        for way in ways:
            kept = []
            for side, nearest in ((below, below[-1:]), (above, above[:1])):
                tried = [{**defaults, knob.name: v, **dict.fromkeys(way, v)} for v in nearest]
                kept += side if all(passes(started(params, wide), wide) for params in tried) else []
            if len(kept) == len(below) + len(above):
                return tuple(way), kept
            if kept and found is None:
                found = tuple(way), kept
        return found

    for knob in taken.knobs:
        if knob.echo:
            continue
        if not said[knob.name]:
            fixed.append({"name": knob.name, "value": knob.default, "why": "the kernel never uses it"})
            continue
        values = knob.values
        if "num_stages" in knob.name:
            values = tuple(v for v in values if v <= 8) or (knob.default,)
        if knob.certain:
            space[knob.name] = values
            continue
        others, bounded = distinct(site, module, defaults, knob, shapes), bound(knob)
        if products and knob.default >= LEAST_TILE:
            others = [value for value in others if value >= LEAST_TILE]
        if bounded is None:
            why = "other values fail where there are several tiles: it is part of the meaning, or repeated elsewhere"
            fixed.append({"name": knob.name, "value": knob.default, "why": why})
            continue
        tied, fine = bounded
        taken.ties.update(dict.fromkeys(tied, knob.name))
        others = [value for value in others if value in fine]
        kept, refused, unseen = [knob.default], False, []
        while others:
            some, others = others[:at_once], others[at_once:]
            late = time.monotonic() - began > EVIDENCE_SECONDS
            running = []
            for value in some:
                tried = _telling(module, defaults, knob, value, [probe] if late else shapes, deep)
                params = {**defaults, knob.name: value, **dict.fromkeys(tied, value)}
                running.append((value, [(started(params, s), s) for s in tried]))
                unseen += [] if tried else [value]
            for value, runs in running:
                passed = [
                    passes(one, s) for one, s in runs
                ]  # every process is heard, also behind one that fails
                kept += [value] if passed and all(passed) else []
                refused = refused or not all(passed)
        if len(kept) > 1 and not refused:
            kept += unseen  # of its kind, and told apart only by larger shapes
        if len(kept) > 1:
            space[knob.name] = tuple(sorted(kept))
            continue
        why = (
            "another value gives another answer: it is part of the meaning"
            if refused
            else "other values change nothing on these shapes"
        )
        fixed.append({"name": knob.name, "value": knob.default, "why": why})
    return space, fixed


def uses(taken: Taken, knob: Knob) -> bool:
    """Whether a launch argument that the knob is in is used by its kernel."""
    import ast

    text = taken.source[taken.source.index("def launch(") :]
    for call in (n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Call)):
        if not isinstance(call.func, ast.Subscript):
            continue
        kernel = taken.kernels.functions.get(ast.unparse(call.func.value))
        if f"'{knob.name}'" in ast.unparse(call.func.slice) or any(
            f"'{knob.name}'" in ast.unparse(k.value) for k in call.keywords
        ):
            return True
        if kernel is None:
            continue
        node = next(n for n in ast.parse(kernel.text).body if isinstance(n, ast.FunctionDef))
        body = {n.id for s in node.body for n in ast.walk(s) if isinstance(n, ast.Name)}
        for parameter, value in zip(node.args.args, call.args, strict=False):
            if f"'{knob.name}'" in ast.unparse(value) and parameter.arg in body:
                return True
    return False


def distinct(
    site: Site, module: Any, defaults: Mapping[str, Any], knob: Knob, shapes: Sequence[Shape]
) -> list[Any]:
    """The knob's values other than its default that make a difference to each other at some shape: where a block is
    ``min(BLOCK, next_power_of_2(n))``, all that are above ``n`` are one."""

    def seen(value: Any) -> Any:
        params = {**defaults, knob.name: value}
        timed = [arguments_of(module, params, _shapeless(site, dims)) for dims in site.dims]
        return [*timed, *(arguments_of(module, params, _inputs(s)) for s in shapes)]

    known = [seen(knob.default)]
    kept = []
    for value in sorted(knob.values, key=lambda v: abs(v - knob.default)):
        made = seen(value)
        if value != knob.default and made not in known:
            known.append(made)
            kept.append(value)
    return sorted(kept)


def _telling(module: Any, defaults: Mapping[str, Any], knob: Knob, value: Any, shapes: Sequence[Shape],
             deep: Callable[[], Shape | None]) -> list[Shape]:  # fmt: skip
    """Shapes on which a value can show what it is: the small ones where it changes something on any, else the deep."""
    if _differs(module, defaults, knob, value, shapes):
        return list(shapes)
    long = deep()
    return [long] if long is not None and _differs(module, defaults, knob, value, [long]) else []


def _differs(
    module: Any, defaults: Mapping[str, Any], knob: Knob, value: Any, shapes: Sequence[Shape]
) -> bool:
    params = {**defaults, knob.name: value}
    return any(
        arguments_of(module, params, _inputs(s)) != arguments_of(module, defaults, _inputs(s)) for s in shapes
    )


def _inputs(shape: Shape) -> dict[str, torch.Tensor]:
    return {
        n: torch.empty(a.shape, dtype=to_tensor(a[:0] if a.ndim else a, "").dtype)
        for n, a in shape.inputs["randn"].items()
    }


def _shapeless(site: Site, dims: Mapping[str, int]) -> dict[str, torch.Tensor]:
    return {
        o.name: torch.empty(o.sizes(dims), dtype=getattr(torch, o.dtype), device="meta")
        for o in site.operands
    }


def arguments_of(module: Any, params: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> Any:
    """The numbers that kernels would be given, without running them."""
    from triton.runtime.interpreter import GridExecutor

    noted: list[Any] = []
    run = GridExecutor.__call__

    def note(executor: Any, *args: Any, **kwargs: Any) -> None:
        grid = executor.grid(kwargs) if callable(executor.grid) else executor.grid
        noted.append((tuple(grid), [a for a in args if isinstance(a, bool | int | float | str)]))

    GridExecutor.__call__ = note
    device = next((t.device for t in tensors.values()), torch.device("cpu"))
    try:
        with device:
            module.launch(tensors, dict(params))
    except Exception as error:  # noqa: BLE001 - no arguments either
        noted.append(repr(error))
    finally:
        GridExecutor.__call__ = run
    return noted


def _counted(name: str, site: Site) -> bool:
    """Whether some operand has a place for every so many elements of the dimension: it cannot be picked from."""
    shapes = [size for operand in site.operands for size in operand.shape if isinstance(size, str)]
    return any(size != name and name in re.split(r"[*/]", size) for size in shapes)


def independent_of(site: Site, reference: Oracle, shape: Shape, results: Sequence[Result]) -> list[str]:
    """Dimensions along which the reference treats elements by themselves, found by asking for some of them."""
    found: list[str] = []
    inputs, whole = shape.inputs["randn"], shape.answers["randn"]
    for name, size in shape.dims.items():
        if size < 3 or not all(name in r.shape for r in results) or _counted(name, site):
            continue
        picks = np.array([0, size // 2, size - 1])

        def some(
            array: np.ndarray, of: Sequence[Any], name: str = name, picks: np.ndarray = picks
        ) -> np.ndarray:
            for axis, dim in enumerate(of):
                if dim == name:
                    array = np.take(array, picks, axis=axis)
            return array

        try:
            part = reference({o.name: some(inputs[o.name], o.shape) for o in site.operands})
        except Exception:  # noqa: BLE001 - then it does not
            continue
        wanted = [some(whole[r.place], r.shape) for r in results]
        got = [part[r.place] for r in results]
        if all(
            g.shape == w.shape
            and np.allclose(g.astype(np.float64), w.astype(np.float64), rtol=1e-6, atol=1e-9)
            for g, w in zip(got, wanted, strict=True)
        ):
            found.append(name)
    return found


class _Flops(TorchDispatchMode):
    """Counts floating-point operations as torch's own counter does, without importing torch's compiler."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        count = flop_registry.get(func._overloadpacket)
        if count is None:
            with self:
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        out = func(*args, **kwargs)
        if count is not None:
            self.total += int(count(*args, **kwargs, out_val=out))
        return out


def work_of(site: Site, reference: Oracle) -> dict[str, int]:
    """Floating-point operations of matrix products in the reference, by workload."""
    found = {}
    for dims in site.dims:
        given = {
            o.name: torch.empty(o.sizes(dims), dtype=getattr(torch, o.dtype), device="meta")
            for o in site.operands
        }
        counter = _Flops()
        try:
            with torch.no_grad(), counter:
                eval(
                    f"reference({reference.call})", {"torch": torch, "reference": reference.function, **given}
                )
            found[id_of(dims)] = counter.total
        except Exception:  # noqa: BLE001 - a reference that wants data
            found[id_of(dims)] = 0
    return found
