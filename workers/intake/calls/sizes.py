"""Tensor sizes as formulas of a call's dimensions, as text: ``M*N``, ``N/128``, ``8*N``, ``M/128*128``, ``M+N``,
``M+-1``, ``M+-N+1``.

``/`` divides and rounds up; it applies to the factor before it. ``dims`` are dimensions by name, in elements.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence

MOST_TIMES = 64
"""Largest factor tried in ``8*N`` (8 codes of 4 bits from one of 32), and largest offset tried in ``N+8``."""

POWERS = tuple(1 << n for n in range(1, 13))


def size_of(size: int | str, dims: Mapping[str, int]) -> int:
    """The value of a formula, in elements: a product of factors, each a sum of dimensions and numbers, divided or
    not."""
    if isinstance(size, int):
        return size
    found = 1
    for part in size.split("*"):
        terms, _, by = part.partition("/")
        signs = {**dims, **{f"-{name}": -size for name, size in dims.items()}}
        total = sum(signs[term] if term in signs else int(term) for term in terms.split("+"))
        found *= -(-total // int(by or 1))
    return found


def label_of(dims: Mapping[str, int]) -> str:
    """The name of a shape in reports: ``4096x128``."""
    return "x".join(str(n) for n in dims.values()) or "one"


def size_code(size: int | str, places: Mapping[str, str]) -> str:
    """A formula as Python code. ``places``: by dimension, the code that reads it; "" where one has none there."""
    if size in places:
        return places[str(size)]
    made = []
    for part in str(size).split("*"):
        terms, _, by = part.partition("/")
        signs = {**places, **{f"-{name}": code and f"-{code}" for name, code in places.items()}}
        known = [signs.get(term, term if term.lstrip("-").isdigit() else "") for term in terms.split("+")]
        if not all(known):
            return ""
        text = " + ".join(known)
        made.append(f"triton.cdiv({text}, {by})" if by else f"({text})" if len(known) > 1 else text)
    return " * ".join(made)


def size_text(seen: Sequence[tuple[Mapping[str, int], int]], constant: bool = True) -> int | str:
    """The simplest formula that fits every (dims, size) ``seen``; with ``constant``, a number if all sizes are equal.

    Raises LookupError if none fits."""
    dims, size = seen[-1]
    for text in _texts(dims, size, constant and len({size for _, size in seen}) == 1):
        if all(size_of(text, given) == found for given, found in seen):
            return text
    raise LookupError(f"a result's size {size} follows from no dimension of the arguments")


def shape_text(
    dims: Mapping[str, int], seen: Sequence[tuple[Mapping[str, int], Sequence[int]]], sizes: Sequence[int]
) -> tuple[int | str, ...]:
    """A formula for each axis of a result that has ``sizes`` at ``dims``, and those ``seen`` at other dimensions.

    Raises LookupError if an axis has none."""
    texts: list[int | str] = []
    for axis in zip(*(sizes for _, sizes in seen), sizes, strict=True):
        # Of dimensions that are of one size everywhere, each axis gets its own.
        given = [*(at for at, _ in seen), {name: dims[name] for name in sorted(dims, key=texts.count)}]
        texts.append(size_text([(at, int(n)) for at, n in zip(given, axis, strict=True)]))
    return tuple(texts)


def _texts(dims: Mapping[str, int], size: int, constant: bool) -> Iterator[int | str]:
    yield from dims
    if constant:
        yield size
    for few in (2, 3):
        yield from ("*".join(names) for names in itertools.combinations(dims, few))
    yield from (f"{n}/{by}" for n in dims for by in POWERS)
    yield from (f"{times}*{n}" for n in dims for times in range(2, MOST_TIMES + 1))
    yield from (f"{n}/{by}*{by}" for n in dims for by in POWERS)
    # Offsets have one more.
    yield from (f"{n}+{more}" for n in dims for more in (-1, *range(1, MOST_TIMES + 1)))
    yield from ("+".join(names) for names in itertools.combinations(dims, 2))
    for one, other in itertools.permutations(dims, 2):
        # Windows of one that begin within the other.
        yield from (f"{one}+-{other}{more}" for more in ("+1", ""))
        # States between chunks.
        yield from (f"{one}*{other}{more}/{by}" for by in POWERS for more in ("", f"+{by}"))
        yield from (f"{times}*{one}*{other}" for times in (2, 3, 4, 8))
