"""Small shapes of the same kind as a call's, to check a kernel on: which to try, and in what order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

TILES = frozenset((16, 32, 64, 128, 256))
FEW = 16
"""Elements along an axis, a batch or heads, of which a shape of several tiles has all."""

WHOLE = (512, 256)
"""Sizes to try where a dimension is made of blocks."""


def check_dims(dims: Mapping[str, int], scale: str, rank: int) -> dict[str, int]:
    """Small sizes of the same kind: with tails (``odd``), round (``even``), or deep in the last dimension."""
    names = list(dims)
    odd = (7, 70, 37, 19, 11, 5)
    even = (16, 128, 64, 32, 16, 16)
    large = (32, 256, 128, 64, 32, 16)
    made = {}
    flat = len(names) == 1 and rank < 2
    for n, name in enumerate(names):
        small = {"odd": odd, "even": even, "large": large, "deep": (4, 4, 4, 4, 4, 4)}[scale][min(n, 5)]
        if scale == "deep" and name == max(names, key=lambda k: (dims[k] <= 16384, names.index(k))):
            small = dims[name]
        if flat and scale != "deep":
            small = {"odd": 3001, "even": 4096, "large": 16384}[scale]
        made[name] = min(dims[name], small)
    return made


def ladder(
    dims: Mapping[str, int], rank: int, holds: Callable[[Mapping[str, int]], bool]
) -> Iterator[dict[str, int]]:
    """Small shapes to try, the most telling first.

    ``holds``: whether the wrapper does the same at a shape. A dimension that must keep its size (a head's, which the
    wrapper asserts, or which a block is made of) keeps it, so that one such dimension does not rule the others out.
    """
    scales = ("odd", "even", "large", "deep")
    made = {scale: check_dims(dims, scale, rank) for scale in scales}
    yield from made.values()
    for scale in ("odd", "even"):
        yield reduced(dims, {n: (made[scale][n], made["even"][n], made["large"][n]) for n in dims}, holds)
    for most in (64, 128):
        kept = {n: s if s <= most else made["even"][n] for n, s in dims.items()}
        yield kept
        yield {n: s if s <= most else min(s, most) for n, s in dims.items()}
    yield from last_resorts(dims)


def last_resorts(dims: Mapping[str, int]) -> list[dict[str, int]]:
    """Shapes to try where no smaller one will do: whole blocks, for kernels without masks, and the call's own."""
    return [{n: min(s, 256) for n, s in dims.items()}, dict(dims)]


def looped(
    dims: Mapping[str, int], tiles: Collection[int], holds: Callable[[Mapping[str, int]], bool]
) -> Iterator[dict[str, int]]:
    """Shapes of two tiles and a part along every axis, with a tail and without one: loops run again there, and programs
    follow each other. ``tiles``: defaults of knobs. A dimension of few elements keeps them, and so does one whose other
    sizes do not hold."""
    tile = max((t for t in tiles if t in TILES), default=0)
    if not tile:
        return
    odd = [2 * tile + 7 + 2 * place for place in range(len(dims))]
    even = [2 * tile + max(tile // 2, 16) * (1 + place % 2) for place in range(len(dims))]
    for sizes in (odd, even):
        aim = {n: min(s, size) if s > FEW else s for (n, s), size in zip(dims.items(), sizes, strict=True)}
        yield aim if holds(aim) else reduced(dims, {n: (size, *WHOLE) for n, size in aim.items()}, holds)


def reduced(
    dims: Mapping[str, int], choices: Mapping[str, Sequence[int]], holds: Callable[[Mapping[str, int]], bool]
) -> dict[str, int]:
    """Sizes with one dimension after the other, the largest first, made the first of its choices that holds."""
    small = dict(dims)
    for name in sorted(dims, key=lambda n: -dims[n]):
        for choice in dict.fromkeys(choices[name]):
            if choice < small[name] and holds({**small, name: choice}):
                small[name] = choice
                break
    return small
