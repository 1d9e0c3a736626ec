"""A rule on operands that every use quantises anew: keep the result over a grid axis."""

from collections.abc import Iterator, Sequence
from functools import partial
from textwrap import indent

import libcst as cst

from tilewright.evolve.proposers.rewrite.base import Unsupported, walk
from tilewright.evolve.proposers.rewrite.dataflow import definitions
from tilewright.evolve.proposers.rewrite.edit import Edit, parse_statements
from tilewright.evolve.proposers.rewrite.pallas.analysis.chain import Chain, find_chain, ordinal, take_from
from tilewright.evolve.proposers.rewrite.pallas.analysis.find import CallRule
from tilewright.evolve.proposers.rewrite.pallas.analysis.shapes import Inference, ShapedValue, loop_count
from tilewright.evolve.proposers.rewrite.pallas.analysis.view import PALLAS_TPU, PallasCall


def reserve(
    edit: Edit, view: PallasCall, chain: Chain, lead: Sequence[str]
) -> tuple[dict[str, list[str]], bool]:
    """Declare one scratch buffer per chain value, [*lead, turns of its loop?, *shape of the value].

    By value the buffer's name and the number of the turn, if it has one; and whether a value has elements of a byte.
    """
    kernel = view.kernel
    inference = Inference(view)
    shaped = inference.run(chain.body({}))
    tpu = edit.ensure_import(PALLAS_TPU, "pltpu")
    buffers, entries, dtypes = {}, [], []
    for value in chain.values:
        buffers[value.name] = [kernel.fresh(f"{value.name}_cache")]
        shape = shaped.get(value.name)
        if not isinstance(shape, ShapedValue) or shape.dtype is None:
            raise Unsupported(f"the shape of {value.name} cannot be inferred")
        dims = [*lead, *shape.dims]
        if value.loop is not None:
            dims.insert(len(lead), loop_count(inference, kernel, value.loop))
            buffers[value.name].append(ordinal(kernel, value.loop) or "")
        entries.append((buffers[value.name][0], f"{tpu}.VMEM(({', '.join(dims)},), {shape.dtype})"))
        dtypes.append(shape.dtype)
    view.add_scratch(edit, entries)
    return buffers, any("8" in dtype for dtype in dtypes)


class CacheAcrossAxis(CallRule[tuple[int, Chain]]):
    """Compute a chain at the first step of a grid axis its inputs do not move with; reuse it from scratch.

    In the first step it stands beside the step's own work, whose dots it overlaps, but for values of one byte.
    """

    name = "pallas_cache_across_axis"
    why = (
        "A tile that does not move with a grid axis is quantised again at every step of that axis. Filling a VMEM "
        "scratch at the first step and reading it at the others trades vector work, which bounds a fused kernel, "
        "for a little memory."
    )

    def find(self, view: PallasCall) -> Iterator[tuple[str, tuple[int, Chain]]]:
        kernel = view.kernel
        for axis in range(len(view.grid)):
            fixed = [r.name for r in view.inputs if r.spec and axis not in r.spec.grid_axes(kernel)]
            chain = find_chain(view, fixed) if fixed else None
            if chain is not None and chain.refs and view.operands:
                what = ", ".join(v.name for v in chain.values)
                yield f"keep {what} of {', '.join(chain.refs)} over grid axis {axis}", (axis, chain)

    def change(self, edit: Edit, view: PallasCall, payload: tuple[int, Chain]) -> None:
        kernel = view.kernel
        axis, chain = payload
        inner: set[int] = set()
        for name in chain.refs:
            ref = view.ref(name)
            spec = ref.spec if ref is not None else None
            assert spec is not None
            inner |= {d for d in spec.grid_axes(kernel) if d > axis}
        lead_dims = [kernel.code(view.grid[d]) for d in sorted(inner)]
        buffers, narrow = reserve(edit, view, chain, lead_dims)
        first = chain.first if narrow else _scope_start(view, chain.first)
        ids = {d: pinned_id(edit, view, d, first) for d in sorted({axis, *inner})}
        lead = [ids[d] for d in sorted(inner)]
        places = {
            value: f"{name}[{', '.join([*lead, *turn]) or '...'}]" for value, (name, *turn) in buffers.items()
        }
        label, step, when = kernel.fresh("fill_cache"), kernel.fresh("one_step"), f"@{view.pallas}.when"
        fill = f"def {label}():\n{indent(chain.body(places), '    ')}"
        if narrow:  # the simulator cannot cost one-byte dots beside the stores of what they read
            edit.before(view.body[first], f"{when}({ids[axis]} == 0)\n{fill}")
        else:
            edit.before(
                view.body[first], f"{fill}\ndef {step}(is_first):\n    if is_first:\n        {label}()"
            )
            calls = "".join(
                f"{when}({ids[axis]} {sign} 0)\ndef {step}_{name}():\n    {step}({name == 'first'})\n"
                for sign, name in (("==", "first"), ("!=", "later"))
            )
            edit.transform(view.function.body, partial(_within, name=step, calls=calls))
        take_from(edit, chain, places)
        for sequential in {axis, *inner}:
            view.make_sequential(edit, sequential)


def _scope_start(view: PallasCall, first: int) -> int:
    """The last top-level statement up to ``first`` from which on all bindings of a name can be one function's.

    Raises Unsupported where a parameter of the kernel is bound again.
    """
    top = {node: number for number, statement in enumerate(view.body) for node in walk(statement)}
    bound = definitions(view.function)
    if bound.keys() & {ref.name for ref in view.refs}:
        raise Unsupported("a reference that is bound again")
    numbers = [[top[place] for place in found if place in top] for found in bound.values()]
    while earlier := [min(n) for n in numbers if n and min(n) < first <= max(n)]:
        first = min(earlier)
    return first


def _within(block: cst.IndentedBlock, name: str, calls: str) -> cst.IndentedBlock:
    """The function ``name`` gets the statements after it as well, and its calls follow."""
    body = list(block.body)
    (place,) = (i for i, s in enumerate(body) if isinstance(s, cst.FunctionDef) and s.name.value == name)
    inner = cst.IndentedBlock(body=[*body[place].body.body, *body[place + 1 :]])  # type: ignore[union-attr]
    return block.with_changes(
        body=[*body[:place], body[place].with_changes(body=inner), *parse_statements(calls)]
    )


def pinned_id(edit: Edit, view: PallasCall, axis: int, before: int) -> str:
    """A name of ``program_id(axis)`` bound before top-level statement ``before``."""
    for statement in view.body[:before]:
        for name, bound in view.axis_names.items():
            if bound == axis and any(isinstance(n, cst.Name) and n.value == name for n in walk(statement)):
                return name
    name = view.kernel.fresh(f"step_{axis}")
    edit.before(view.body[0] if before else view.body[before], f"{name} = {view.pallas}.program_id({axis})")
    return name
