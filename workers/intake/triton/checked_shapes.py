"""Small shapes that a kernel module is checked on: of the same kind as the call's, and several tiles long."""

import itertools
import math
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import numpy as np

from tilewright.workers.intake.calls.sizes import label_of
from tilewright.workers.intake.child_program import Refusal, first_line
from tilewright.workers.intake.judge.bounds import wrong
from tilewright.workers.intake.judge.input_kinds import CheckedShape, inputs_of
from tilewright.workers.intake.judge.self_reference import SELF
from tilewright.workers.intake.triton.call_site import Seed
from tilewright.workers.intake.triton.interpreter_run import RUN_SECONDS, TooSlow
from tilewright.workers.intake.triton.knob_evidence import blanks, launch_arguments

MOST_SHAPES = 3
MOST_REASONS = 3
"""Reasons that are shown of a kernel that agrees at no shape."""

NOT_FINITE = "the kernel's own answer is not finite, as where it leaves memory unwritten"

NO_TILES = frozenset(("num_warps", "num_stages"))

MOST_PROGRAMS, THIN, THINNEST = 192, (3, 2, 5, 4), (2,)
"""Programs of one run, beyond which a shape has so few elements along its axes but the last: the interpreter takes
milliseconds for each program, however little it does. Where loops make a program slow, it has even fewer."""

LOOPED_SECONDS = 2.0
"""Most seconds of a processor that a run may take, and the most elements of the operands of several tiles."""
LOOPED_ELEMENTS = 1 << 21

RUN_GOAL = 0.15
"""Seconds of a processor that a run may take before its shape is made smaller along axes without tiles."""

TOO_SLOW, MOST_LATE = "more than", 2
"""Beginning of a reason, and the shapes that may take longer before no further ones are tried."""

SHAPES_SECONDS, SLOW_SECONDS = 8.0, 1.5
"""Of a processor, after which one shape will do, however a function is taken, and which runs on the shapes may take
together: each is run for every kind of inputs."""

SCALES: Mapping[str, Sequence[int]] = {
    "odd": (7, 70, 37, 19, 11, 5),
    "even": (16, 128, 64, 32, 16, 16),
    "large": (32, 256, 128, 64, 32, 16),
    "deep": (4, 4, 4, 4, 4, 4),
}
"""Sizes by the place of a dimension."""

TILES = frozenset((16, 32, 64, 128, 256, 512, 1024, 2048, 4096))
FEW, SOME = 16, 4
"""Elements along an axis, a batch or heads, of which a shape of several tiles has no more than some."""

WHOLE = (512, 256)
"""Sizes to try where a dimension is made of blocks."""


def checked_shapes(seed: Seed, notes: list[str]) -> list[CheckedShape] | str:
    """Up to three small shapes on which the recording holds and the default is right; or why there is none."""
    site, dims, clock = seed.site, seed.site.dims[0], seed.interpreter.clock
    site.until = site.until or clock() + SHAPES_SECONDS
    found: list[CheckedShape] = []
    reasons: dict[str, str] = {}

    def holds(small: Mapping[str, int]) -> bool:
        """Whether the recording holds at a shape, and the reference takes it."""
        if seed.unlike_at(small):
            return False
        if site.elements(small) > LOOPED_ELEMENTS or site.reference == SELF:
            return True
        try:
            return bool(seed.reference(inputs_of(site.operands, small, "randn", 1)))
        except Exception:  # noqa: BLE001 - a shape the reference does not take
            return False

    tiles = [k.default for k in seed.text.knobs if k.tiles and k.name not in NO_TILES]

    def few_of(small: Mapping[str, int]) -> dict[str, int]:
        return thinned(seed, dict(small), holds, None)

    def fits(small: Mapping[str, int]) -> bool:
        """Whether a shape of several tiles is small enough for the interpreter."""
        few = few_of(small)
        return site.elements(few) <= LOOPED_ELEMENTS and programs_of(seed, few) <= MOST_PROGRAMS

    def refused(small: dict[str, int], most: float) -> str:
        """Why a shape is not checked, in so many seconds of a processor; empty where it was added to ``found``."""
        if reason := seed.unlike_at(small):
            return reason
        try:
            inputs = inputs_of(site.operands, small, "randn", 4)
            outputs = seed.interpreter.outputs(seed.defaults, inputs, most)
            seconds, outside = seed.interpreter.seconds, seed.interpreter.read_outside
            answers = seed.reference(inputs)
        except Refusal as refusal:
            return refusal.what
        except TooSlow:
            return f"{TOO_SLOW} {most:.0f} s in the interpreter"
        except Exception as error:  # noqa: BLE001 - a shape the kernel or the reference does not take
            return first_line(error)
        reason = wrong(outputs, answers, site.operands)
        if outside and small != dims:
            reason = "a kernel reads outside its tensors"
        if not reason and site.reference == SELF and not all(map(np.all, map(np.isfinite, answers))):
            reason = NOT_FINITE
        if not reason:
            found.append(CheckedShape(small, inputs, answers, outputs, small in wide, seconds))
        return reason

    wide = [few_of(small) for small in looped(dims, tiles, holds, fits) if fits(small)]
    late: list[dict[str, int]] = []
    last = last_resorts(dims)
    heavy = False
    rank = max((len(o.shape) for o in site.operands), default=0)
    left = deque([*wide, *ladder(dims, rank, holds)])
    while left and len(found) < MOST_SHAPES and len(late) <= MOST_LATE:
        plain = left.popleft()
        few = thinned(seed, plain, holds, None) if heavy else plain
        small = plain if plain in wide else thinned(seed, few, holds, bool(late) and few == plain)
        label = label_of(small)
        big = site.elements(small) > 1 << (24 if small == dims else 22)
        slow = clock() > site.until or sum(shape.seconds for shape in found) > SLOW_SECONDS
        known = label in reasons or any(small == shape.dims for shape in found)
        if known or big or (found and (slow or plain in last)):
            continue
        if not (reason := refused(small, LOOPED_SECONDS)):
            heavy = heavy or found[-1].seconds > RUN_GOAL
            few = thinned(seed, small, holds, None, THINNEST if small in wide else THIN) if heavy else small
            wide += [few] if small in wide else []
            if any(few == shape.dims for shape in found[:-1]):
                del found[-1]  # each is run for every kind of inputs and every value of a knob
            elif few != small and not refused(few, LOOPED_SECONDS):
                del found[-2]
            continue
        heavy = heavy or reason.startswith(TOO_SLOW)
        if reason.startswith(TOO_SLOW) and small not in wide:
            late.append(small)
            left.appendleft(small)
        if small not in wide or not reason.startswith(TOO_SLOW):
            reasons[label] = reason
    if late and not found:
        small = min(late, key=site.elements)
        reasons[label_of(small)] = refused(small, RUN_SECONDS)
    if not found:
        return f"the kernel agrees with the reference on no small shape: {joined_reasons(reasons)}"
    notes += [f"not checked at {label}: {reason}" for label, reason in reasons.items() if reason]
    return found


def may_be_joined(dims: Mapping[str, int], shapes: Sequence[CheckedShape]) -> bool:
    """Whether these are few, and two dimensions of one size have one size in all of them as well."""
    alike = [pair for pair in itertools.combinations(dims, 2) if dims[pair[0]] == dims[pair[1]]]
    equal = any(all(shape.dims[n] == shape.dims[m] for shape in shapes) for n, m in alike)
    return equal and len(shapes) < MOST_SHAPES


def joined_reasons(reasons: Mapping[str, str]) -> str:
    """Reasons by shape as one text: each once, and the number of those left out."""
    shapes: dict[str, list[str]] = {}
    for label, why in reasons.items():
        shapes.setdefault(why, []).append(label)
    texts = [f"{', '.join(labels)}: {why}" for why, labels in shapes.items()]
    more = [f"and {len(texts) - MOST_REASONS} more"] if len(texts) > MOST_REASONS else []
    return "; ".join([*texts[:MOST_REASONS], *more])


def thinned(
    seed: Seed,
    small: dict[str, int],
    holds: Callable[[Mapping[str, int]], bool],
    slow: bool | None,
    least: Sequence[int] = THIN,
) -> dict[str, int]:
    """The shape, with fewer elements where it would launch many programs, or where others were too ``slow``, if the
    recording holds there. ``slow`` None: along axes of which each element has programs of its own, as no tile has. Of
    heads that share those of another axis, both are made fewer, and of axes of one size in the call, too."""
    thin, dims, deep = dict(small), seed.site.dims[0], {o.shape[-1] for o in seed.site.operands if o.shape}
    for place, name in enumerate(list(small)[:-1]):
        many, size = programs_of(seed, thin), least[place % len(least)]
        if slow is False and many <= MOST_PROGRAMS:
            break
        less = [n for n in small if n not in deep and 1 < small[n] < small[name] and dims[n] < dims[name]]
        shared = [n for n in less if dims[name] % small[n] == 0]
        size = min(small[name], max(size + size % 2, 4) if shared else size)
        alike = {n: size for n in small if dims[n] == dims[name] and thin[n] == thin[name]}
        ways = (*({n: 2} for n in shared), alike)
        for few in ({**thin, name: size}, *({**thin, name: size, **way} for way in ways)):
            own = programs_of(seed, few) * thin[name] == many * few[name] and few != thin
            own = own and all(few[n] < few[name] for n in shared)
            if (own if slow is None else slow or programs_of(seed, few) < many) and holds(few):
                thin = few
                break
    return thin


def programs_of(seed: Seed, dims: Mapping[str, int]) -> int:
    """Programs that a run with the defaults launches at a shape; none where its ``launch`` does not take it."""
    given = launch_arguments(seed, {}, blanks(seed, dims, "meta"))
    return sum(math.prod(launch[0]) for launch in given if isinstance(launch, tuple))


# -- which shapes to try ---------------------------------------------------------------------------------


def check_dims(dims: Mapping[str, int], scale: str, rank: int) -> dict[str, int]:
    """Small sizes of the same kind: with tails (``odd``), round (``even``), or deep in the last dimension."""
    names = list(dims)
    made = {}
    flat = len(names) == 1 and rank < 2
    for n, name in enumerate(names):
        small = SCALES[scale][min(n, 5)]
        if scale == "deep" and name == max(names, key=lambda k: (dims[k] <= 16384, names.index(k))):
            small = dims[name]
        if flat and scale != "deep":
            small = {"odd": 3001, "even": 4096, "large": 16384}[scale]
        made[name] = min(dims[name], small)
    return made


def ladder(dims: Mapping[str, int], rank: int, holds: Callable[[Mapping[str, int]], bool]) -> Iterator[dict[str, int]]:
    """Small shapes to try, the most telling first.

    ``holds``: whether the wrapper does the same at a shape. A dimension that must keep its size (a head's, which the
    wrapper asserts, or which a block is made of) keeps it, so that one such dimension does not rule the others out.
    """
    made = {scale: check_dims(dims, scale, rank) for scale in SCALES}
    yield from made.values()
    for scale in ("odd", "even"):
        yield reduced(dims, {n: (made[scale][n], made["even"][n], made["large"][n]) for n in dims}, holds)
    yield {n: s if s <= 128 else made["even"][n] for n, s in dims.items()}
    yield from last_resorts(dims)


def last_resorts(dims: Mapping[str, int]) -> list[dict[str, int]]:
    """Shapes to try where no smaller one will do: whole blocks, for kernels without masks, and the call's own."""
    return [{n: min(s, 256) for n, s in dims.items()}, dict(dims)]


def looped(
    dims: Mapping[str, int],
    tiles: Collection[int],
    holds: Callable[[Mapping[str, int]], bool],
    fits: Callable[[Mapping[str, int]], bool] = lambda dims: True,
) -> Iterator[dict[str, int]]:
    """Shapes of two or three tiles and a part along every axis, with a tail and without one: loops run again there,
    programs follow each other, and neighbouring axes differ in their number of tiles.

    ``tiles``: defaults of knobs, of which the largest counts whose shapes ``fits`` finds small enough. A dimension
    whose other sizes do not hold keeps its own.
    """
    for tile in sorted(TILES & set(tiles), reverse=True):
        odd = [(2 + place % 2) * tile + 7 + 2 * place for place in range(len(dims))]
        even = [(2 + place % 2) * tile + max(tile // 2, 16) for place in range(len(dims))]
        for sizes in (odd, even):
            aim = {n: min(s, size if s > FEW else SOME) for (n, s), size in zip(dims.items(), sizes, strict=True)}
            if fits(aim):
                yield (aim if holds(aim) else reduced(dims, {n: (size, *WHOLE) for n, size in aim.items()}, holds))
        if fits(aim):
            return


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
