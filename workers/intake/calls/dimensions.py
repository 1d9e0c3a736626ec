"""Names the dimensions of a call's tensors, from its shapes alone: one name for axes that must have equal sizes."""

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from tilewright.fitness.dialect_names import ALL_BUILTINS
from tilewright.workers.intake.calls.call_text import (
    DISTINCT,
    Call,
    Place,
    TensorArgument,
    parse,
    parts_of,
    python_text,
)
from tilewright.workers.intake.child_program import Refusal
from tilewright.workers.intake.operator import Operand
from tilewright.workers.intake.source.names import public

LETTERS = "MNKLPQRSUVWABCDEFGHIJ"
MOST, MOST_APART = 200, 120
"""Assignments of names that are tried: with tensors of one shape named alike, and with each named by itself."""

MULTIPLE = 16
"""Factor of the second, larger sizes that an assignment is tried with: some wrappers need several chunks of one."""

BLOCKS = (128, 2, 64, 32, 16, 256, 512, 1024, 8, 4)
"""Divisors tried where a dimension is another one divided, the usual first: scale blocks, halves, packed numbers."""

LEAST_UNIT = 16
"""Sizes that are tried are multiples of the largest block, and of this."""

MOST_BLOCKS, MOST_WAYS, MOST_TRIES = 24, 32, 400
"""Most assignments, most divisions for each, and most of both together that are tried."""

KEEPABLE = (16, 256)
"""Least and largest size of an axis that is tried as a fixed number by itself; smaller ones are fixed together."""

RESERVED = frozenset(("torch", "triton", "tl", "math", "inputs", "params", "reference"))
Sizes = tuple[tuple[int, ...], ...]
"""The size of each axis in every call: ``sizes[axis][call]``."""


class CallsDiffer(Refusal):
    """The calls differ in more than the sizes of their tensors."""


def argument_at(call: Call, place: Place) -> Any:
    """The argument at a place: position or keyword, then keys within lists and objects. Raises CallsDiffer."""
    value: Any = call.keywords if isinstance(place[0], str) else call.arguments
    for part in place:
        parts = dict(parts_of(value)) if not isinstance(value, Mapping) else value
        if part not in parts:
            raise CallsDiffer("calls differ in the number of their tensors: tune them apart")
        value = parts[part]
    return value


def permutation_text(name: str, order: Sequence[int]) -> str:
    """Code of a tensor with its dimensions permuted; ``name`` alone without ``order``."""
    return f"{name}.permute({', '.join(map(str, order))})" if order else name


def reference_calls(
    call: Call,
    operands: Sequence[Operand],
    places: Sequence[Place],
    known: Collection[str] = (),
    texts: Mapping[Place, str] = {},
) -> list[str]:
    """Argument lists to try on the user's reference, as code, the likeliest first.

    First those of the call itself; then with only the keywords in ``known``, without keywords, and with tensors only.
    ``texts``: code of other arguments by place.
    """
    by_place = {p: permutation_text(o.name, argument_at(call, p).order) for o, p in zip(operands, places, strict=True)}
    given = {**by_place, **texts}
    positional = [python_text(v, (n,), given) for n, v in enumerate(call.arguments)]
    keyword = {k: f"{k}={python_text(v, (k,), given)}" for k, v in call.keywords.items()}
    every, few = list(keyword.values()), [text for k, text in keyword.items() if k in known]
    tensors = list(by_place.values())
    ways = [[*first, *then] for first in (positional, tensors) for then in (every, few, [])]
    return list(dict.fromkeys(", ".join(way) for way in ways))


def tensor_places(calls: Sequence[Call], names: Sequence[str]) -> list[tuple[str, Place]]:
    """Names and places of a call's tensors. ``names``: of its positional parameters."""
    found: list[tuple[str, Place]] = []

    def walk(value: Any, name: str, place: Place) -> None:
        if isinstance(value, TensorArgument):
            found.append((name, place))
        else:
            for n, part in parts_of(value):
                walk(part, f"{name}_{str(n).strip('_')}", (*place, n))

    for n, value in enumerate(calls[0].arguments):
        walk(value, names[n], (n,))
    for key, value in calls[0].keywords.items():
        walk(value, key, (key,))
    return found


def text_without_tensors(call: Call) -> str:
    """The call's arguments as text, with the word ``tensor`` in place of each tensor."""
    blank = {place: "tensor" for _, place in tensor_places([call], [""] * len(call.arguments))}
    values = [*enumerate(call.arguments), *sorted(call.keywords.items())]
    return ", ".join(f"{key}={python_text(value, (key,), blank)}" for key, value in values)


def differ_only_in_tensors(calls: Sequence[str]) -> list[bool]:
    """For each call (as text), whether it differs from the first one in its tensors only."""
    others = [text_without_tensors(parse(text)) for text in calls]
    return [text == others[0] for text in others]


def operands(
    calls: Sequence[Call], found: Sequence[tuple[str, Place]], used_names: Set[str]
) -> tuple[list[Operand], list[Place]]:
    """Operands with ``Sizes`` in place of shapes, and their places. Raises CallsDiffer."""
    made, places = [], []
    if len(set(map(text_without_tensors, calls))) > 1:
        raise CallsDiffer("calls differ in arguments that are no tensors: tune them apart")
    for name, place in found:
        tensors = [argument_at(call, place) for call in calls]
        if any(len(t.shape) != len(tensors[0].shape) or t.dtype != tensors[0].dtype for t in tensors):
            raise CallsDiffer(f"argument {name} has another rank or dtype in another call")
        plain = public(name, "x")
        while plain in ALL_BUILTINS or plain in RESERVED or plain in used_names:
            plain += "_"
        sizes = tuple(tuple(t.shape[axis] for t in tensors) for axis in range(len(tensors[0].shape)))
        below, total = max(t.below for t in tensors), max(t.total for t in tensors)
        first, longest = tensors[0], max(t.longest for t in tensors)
        made.append(
            Operand(
                plain,
                first.dtype,
                sizes,  # type: ignore[arg-type]
                below,
                total,
                first.size,
                first.form,
                longest,
                least=first.least,
                most=first.most,
            )
        )
        places.append(place)
    return made, places


ShapeCheck = Callable[[Mapping[str, int], list[Operand]], bool]


def name_dimensions(
    raw: Sequence[Operand],
    calls: int,
    works: ShapeCheck,
    size: int = 16,
    surely: ShapeCheck | None = None,
    few: int = 0,
) -> tuple[list[Operand], list[dict[str, int]]]:
    """Operands with named dimensions, and the dimensions of every call. The assignment with the most names wins.

    Axes of equal size may be one dimension or several (those of a square matrix mostly are two). So assignments are
    tried: each name gets a small size of its own, a multiple of ``size``, and ``works(dims, operands)`` says whether
    the function runs at them; if none works, larger sizes are tried. ``surely`` is a dearer check (of the results, say)
    that an assignment should pass, too. Axes of at most ``few`` elements keep their size in these trials; those of
    equal size are one dimension.
    """
    shapes: list[Any] = [tuple(o.shape) for o in raw]

    def both(dims: Mapping[str, int], operands: list[Operand]) -> bool:
        return works(dims, operands) and (surely is None or surely(dims, operands))

    best: list[Any] | None = None
    for unit in (size, MULTIPLE * size):
        if best is None:
            best = _most_names(raw, shapes, _assignments(shapes, few=few), MOST, calls, both, unit, range(few + 1))
        if best is None and len(set(shapes)) < len(shapes):
            apart = _assignments(shapes, apart=True, few=few)
            best = _most_names(raw, shapes, apart, MOST_APART, calls, both, unit, range(few + 1))
    for kept in _sizes_to_keep(shapes) if best is None else ():
        ways = _assignments(shapes)
        best = best or _most_names(raw, shapes, ways, MOST_BLOCKS, calls, both, size, kept)
    best = best or _in_blocks(raw, shapes, calls, both) or _batch_dimension(raw, shapes, both) or None
    if best is None and surely is not None:
        best = _most_names(raw, shapes, _assignments(shapes), MOST, calls, works, size)
    chosen = best or next(_assignments(shapes, merged=True))
    dims = _dims(shapes, chosen, calls)
    return [_with_named_bounds(o, dims[0]) for o in _with_shapes(raw, chosen)], dims


def _most_names(
    raw: Sequence[Operand],
    shapes: Sequence[Sizes],
    ways: Iterator[list[Any]],
    most: int,
    calls: int,
    works: ShapeCheck,
    size: int,
    kept: Collection[int] = (),
) -> list[Any] | None:
    """The assignment with the most names among the first ``most`` that work; None if none does. Axes whose size is in
    ``kept`` are tried at that size."""
    best: tuple[int, list[Any]] | None = None
    for names in itertools.islice(ways, most):
        count = len({n for shape in names for n in shape if isinstance(n, str)})
        if best is not None and count <= best[0]:
            continue
        dims = _dims(shapes, names, calls)
        small = {n: s if s in kept else size * (2 + place) for place, (n, s) in enumerate(dims[0].items())}
        if works(small, [_with_named_bounds(o, dims[0]) for o in _with_shapes(raw, names)]):
            best = (count, names)
    return best[1] if best else None


def _sizes_to_keep(shapes: Sequence[Sizes]) -> list[set[int]]:
    """Sets of sizes to keep in trials: the small ones (a batch, a filter), one larger one (a head's), and both."""
    sizes = {size[0] for shape in shapes for size in shape if len(set(size)) == 1}
    few = {size for size in sizes if size < KEEPABLE[0]}
    larger = sorted(size for size in sizes if KEEPABLE[0] <= size <= KEEPABLE[1])
    return [*([few] if few else []), *({size} for size in larger), *(few | {size} for size in larger if few)]


def _batch_dimension(raw: Sequence[Operand], shapes: Sequence[Sizes], works: ShapeCheck) -> list[Any]:
    """An assignment with one dimension, the batch: the first axis of the first operand and of others of its rank and
    batch size. All other sizes stay numbers, as those of an image and a filter. Empty if it does not work."""
    if not shapes or any(len(set(size)) > 1 for shape in shapes for size in shape):
        return []
    batch, rank, numbers = shapes[0][:1], len(shapes[0]), [[size[0] for size in shape] for shape in shapes]
    for chosen in (range(len(raw)), (0, len(raw) - 1)):
        named = [n for n in chosen if len(shapes[n]) == rank and shapes[n][:1] == batch]
        made = [(LETTERS[0], *row[1:]) if n in named else tuple(row) for n, row in enumerate(numbers)]
        if rank > 2 and batch != ((1,),) and works({LETTERS[0]: 3}, _with_shapes(raw, made)):
            return made
    return []


def _in_blocks(raw: Sequence[Operand], shapes: Sequence[Sizes], calls: int, works: ShapeCheck) -> list[Any]:
    """An assignment where some dimensions are another one divided: a scale for every 128 elements, a half. Empty if
    none works. Assignments with the fewest divided dimensions are tried first."""
    assignments = list(itertools.islice(_assignments(shapes), MOST_BLOCKS))
    assignments.sort(key=lambda names: -len({n for shape in names for n in shape}))
    most = len({n for shape in assignments[0] for n in shape})
    tries = 0
    for number, names in itertools.product(range(1, most), assignments):
        dims = _dims(shapes, names, calls)
        for formulas in itertools.islice(_counting_dimensions(dims, number), MOST_WAYS):
            tries += 1
            if tries > MOST_TRIES:
                return []
            made = [tuple(formulas.get(n, n) if isinstance(n, str) else n for n in shape) for shape in names]
            largest = max(LEAST_UNIT, *(_counts(text)[1] for text in formulas.values()))
            kept = [name for name in dims[0] if name not in formulas]
            small = {name: largest * (2 + place) for place, name in enumerate(kept)}
            whole = {name: dims[0][name] for name in kept}
            if works(small, [_with_named_bounds(o, whole) for o in _with_shapes(raw, made)]):
                return made
    return []


def _counting_dimensions(dims: Sequence[Mapping[str, int]], number: int) -> Iterator[dict[str, str]]:
    """Formulas (``N/128``, ``N+1``) for ``number`` dimensions in terms of others, that fit the sizes of all calls."""
    counts = {
        name: [
            *(f"{other}+1" for other in dims[0] if all(d[other] + 1 == d[name] for d in dims)),
            *(
                f"{other}/{by}"
                for by in BLOCKS
                for other in dims[0]
                if other != name and all(-(-d[other] // by) == d[name] for d in dims)
            ),
        ]
        for name in dims[0]
    }
    for chosen in itertools.combinations([name for name, of in counts.items() if of], number):
        for ways in itertools.product(*(counts[name] for name in chosen)):
            if not any(_counts(way)[0] in chosen for way in ways):
                yield dict(zip(chosen, ways, strict=True))


def _counts(way: str) -> tuple[str, int]:
    """The dimension in a formula ``N/128`` or ``N+1``, and its divisor."""
    name, _, by = way.partition("/")
    return name.partition("+")[0], int(by or 1)


def _with_named_bounds(operand: Operand, dims: Mapping[str, int]) -> Operand:
    """The operand with numeric bounds of its values as formulas, so that they hold at any size.

    A bound becomes a dimension whose size it equals or exceeds half of; ``N+1``, as of lengths; or a product of two, as
    of slots in pages."""
    own = set(operand.shape)
    # an order of things has as many as they are
    others = {n: s for n, s in dims.items() if n not in own or operand.form == DISTINCT}
    below, total = operand.below, operand.total
    if isinstance(below, int) and below > 2:
        near = [n for n, s in others.items() if below <= s < 2 * below]
        pages = (f"{one}*{two}" for one, two in itertools.combinations(others, 2) if others[one] * others[two] == below)
        full: list[int | str] = [f"{n}+1" for n, s in others.items() if s + 1 == below > LEAST_UNIT]
        if not full or below in others.values():
            full = [min(near, key=lambda n: others[n], default=next(pages, below))]
        below = full[0]
    if isinstance(total, int) and total:
        total = next((n for n, s in others.items() if s == total), total)
    return replace(operand, below=below, total=total)


def with_bounds_as_dimensions(operands: Sequence[Operand], dims: Mapping[str, int]) -> list[Operand]:
    """The operands with each bound that is still a number replaced by the smallest dimension that is at least as
    large."""
    found = []
    for operand in operands:
        below, own = operand.below, set(operand.shape)
        fit = [n for n, s in dims.items() if n not in own and isinstance(below, int) and 2 < below <= s]
        found.append(replace(operand, below=min(fit, key=lambda n: dims[n], default=below)))
    return found


def _with_shapes(raw: Sequence[Operand], names: Sequence[Any]) -> list[Operand]:
    return [replace(o, shape=shape) for o, shape in zip(raw, names, strict=True)]


def _dims(raw: Sequence[Sizes], names: Sequence[Any], calls: int) -> list[dict[str, int]]:
    dims: list[dict[str, int]] = [{} for _ in range(calls)]
    for sizes, shape in zip(raw, names, strict=True):
        for size, name in zip(sizes, shape, strict=True):
            if isinstance(name, str) and name.isidentifier():
                for call in range(calls):
                    dims[call][name] = size[call]
    return dims


def _assignments(
    raw: Sequence[Sizes], *, merged: bool = False, apart: bool = False, few: int = 0
) -> Iterator[list[Any]]:
    """All assignments of names to axes, by operand. Axes of equal size share a name or do not; with ``merged``, or at
    most ``few`` elements, they do. Tensors of one shape are named alike, unless ``apart``."""
    keys: list[Any] = list(range(len(raw))) if apart else list(raw)
    sizes_of = dict(zip(keys, raw, strict=True))
    shapes = list(sizes_of)

    def go(
        place: int, axis: int, known: dict[Any, list[str]], names: tuple[Any, ...], made: dict[Any, Any]
    ) -> Iterator[Any]:
        if place == len(shapes):
            yield made
            return
        shape = sizes_of[shapes[place]]
        if axis == len(shape):
            yield from go(place + 1, 0, known, (), {**made, shapes[place]: names})
            return
        size = shape[axis]
        if set(size) == {1}:
            yield from go(place, axis + 1, known, (*names, 1), made)
            return
        before = known.get(size, [])
        total = sum(map(len, known.values()))
        fresh = LETTERS[total] if total < len(LETTERS) else f"D{total}"
        if (merged or max(size) <= few) and before:
            options = before[:1]
        else:
            again = [n for n in before if n not in names]
            new = [fresh] if not again or (not merged and len(before) < 3) else []
            options = [*new, *again] if place == 0 else [*again, *new]
        for name in options:
            more = known if name in before else {**known, size: [*before, name]}
            yield from go(place, axis + 1, more, (*names, name), made)

    for found in go(0, 0, {}, (), {}):
        yield [found[key] for key in keys]
