"""Odd calls of a function, and all that a caller can see of each: by these a winner is compared with its original."""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves, tree_map_only

Arguments = tuple[list[Any], dict[str, Any]]
"""What is given by position and by keyword."""

Case = tuple[str, Callable[[], Arguments], str]
"""Name, a maker of the arguments, and how it is called: see ``outcome``."""

AMBIENT: Mapping[str, Callable[[], Any]] = {
    "without gradients": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "double by default": lambda: _default_dtype(torch.float64),
    "meta by default": lambda: torch.device("meta"),
}
"""What a call is made within, by the way of it."""


def odd_calls(function: Callable[..., Any], made: Callable[[], Arguments]) -> Iterator[Case]:
    """Calls beside the one that ``made`` makes. ``function``: it says how parameters are named."""

    def each(change: Callable[[torch.Tensor], Any]) -> Callable[[], Arguments]:
        return lambda: tree_map_only(torch.Tensor, change, made())

    def first(change: Callable[[torch.Tensor], Any]) -> Callable[[], Arguments]:
        def of() -> Arguments:
            seen: list[int] = []
            change_one = lambda t: t if seen else (seen.append(1), change(t))[1]  # noqa: E731
            return tree_map_only(torch.Tensor, change_one, made())

        return of

    leaf = lambda t: t.requires_grad_() if t.is_floating_point() else t  # noqa: E731
    floats = lambda kind: lambda t: t.to(kind) if t.is_floating_point() else t  # noqa: E731
    yield "as recorded", made, "once"
    yield "afterwards", made, "inputs change afterwards"
    for way in AMBIENT:
        yield way, made, way
    changes = {
        "fewer rows": lambda t: t[:7].clone(), "one row": lambda t: t[:1].clone(),
        "narrower": lambda t: t[..., : max(1, t.shape[-1] // 2)].clone(), "larger": lambda t: torch.cat([t, t]),
        "other dtype": floats(torch.float64), "half": floats(torch.float16), "bfloat": floats(torch.bfloat16),
        "other integers": lambda t: t if t.is_floating_point() else t.to(torch.int16),
        "rank": lambda t: t[None], "flat": lambda t: t.reshape(-1), "empty": lambda t: t[:0],
        "with gaps": lambda t: torch.stack([t, t], -1)[..., 0], "turned": lambda t: t.mT.contiguous().mT if t.dim() > 1 else t,
        "spread": lambda t: t[:1].expand(t.shape), "one row of a wider": lambda t: torch.cat([t, t], -1)[:1, ..., : t.shape[-1]],
        "shifted": lambda t: torch.cat([t.reshape(-1)[:1], t.reshape(-1)])[1:].view(t.shape),
        "other device": lambda t: t.to("meta"), "of numpy": lambda t: t.float().numpy() if t.is_floating_point() else t.numpy(),
        "numbers": lambda t: 2, "none": lambda t: None,
        "sparse": lambda t: t.to_sparse(), "subclass": lambda t: t.as_subclass(_Own),
        "parameter": lambda t: torch.nn.Parameter(t, requires_grad=False),
    }  # fmt: skip
    for name, change in changes.items():
        yield name, each(change), "once"
        if name in ("fewer rows", "other dtype", "none", "larger", "with gaps"):
            yield f"{name}, of the first", first(change), "once"
    for way in (
        "once",
        "twice",
        "last",
        "create",
        "inputs change before the backward",
        "without gradients",
        "jvp",
        "vmap",
    ):
        yield f"needs a gradient: {way}", each(leaf), way
    yield "gradient of a view", each(lambda t: leaf(t).view(t.shape)), "once"
    yield "one gradient", first(leaf), "once"
    yield from _aliases(made)
    yield from _options(function, made)


def _aliases(made: Callable[[], Arguments]) -> Iterator[Case]:
    def shared(same: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Callable[[], Arguments]:
        def of() -> Arguments:
            given = made()
            kept: list[torch.Tensor] = [t for t in tree_leaves(given) if isinstance(t, torch.Tensor)]
            return tree_map_only(torch.Tensor, lambda t: same(kept[0], t), given)

        return of

    alike = lambda one, t: one.shape == t.shape and one.dtype == t.dtype  # noqa: E731
    yield "one tensor", shared(lambda one, t: one if alike(one, t) else t), "once"
    yield "one memory", shared(lambda one, t: one.view(t.shape) if alike(one, t) else t), "once"
    begins = lambda one, t: (
        one.view(-1)[: t.numel()].view(t.shape) if t.dtype == one.dtype and t.numel() <= one.numel() else t
    )  # noqa: E731
    yield "one memory in part", shared(begins), "once"


def _options(function: Callable[..., Any], made: Callable[[], Arguments]) -> Iterator[Case]:
    yield "unknown option", lambda: (made()[0], {**made()[1], "nobody": 1}), "once"
    yield "too few", lambda: ([], {}), "once"
    yield "too many", lambda: ([*made()[0], *range(40)], made()[1]), "once"
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return
    named = all(p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) for p in parameters.values())
    place = list(parameters).index

    def bound() -> dict[str, Any]:
        given, keywords = made()
        return {**dict(zip(parameters, given, strict=False)), **keywords}

    if named:
        yield "by name", lambda: ([], bound()), "once"
        defaults = {n: p.default for n, p in parameters.items() if p.default is not p.empty}
        yield "defaults said", lambda: ([], {**defaults, **bound()}), "once"
        said = {**defaults, **bound()}
        for name, value in said.items():
            for other in _others(value) if place(name) >= 0 else ():
                yield f"{name}={other!r}", lambda n=name, v=other: ([], {**bound(), n: v}), "once"  # type: ignore[misc]


def _others(value: Any) -> list[Any]:
    """Plain values that are not this one, or equal and of another type."""
    if isinstance(value, bool):
        return [not value, int(value)]
    if isinstance(value, int):
        return [value + 1, float(value), *([bool(value)] if value in (0, 1) else []), np.int64(value)]
    if isinstance(value, float):
        return [value * 2 + 1, *([int(value)] if value == int(value) else []), math.nan, torch.tensor(value)]
    if isinstance(value, str):
        return [value.upper(), ""]
    if isinstance(value, torch.dtype):
        return [torch.bfloat16, None]
    return [1.0, True] if value is None else []


def outcome(function: Callable[..., Any], given: Arguments, way: str) -> list[Any]:
    """All that a caller can see of a call: what is returned, with gradients, what shares memory with what, and what
    became of the arguments; of one that fails the exception.

    ``way``: a name of AMBIENT, or what is done after the call: whether the backward runs ``twice``, of the ``last``
    output alone, or makes a graph (``create``), or what changes before (``inputs change …``).
    """
    arguments, keywords = given
    leaves = [t for t in tree_leaves(given) if isinstance(t, torch.Tensor)]
    versions = [_version(t) for t in leaves]
    try:
        with AMBIENT.get(way, contextlib.nullcontext)():
            if way in ("jvp", "vmap"):
                return [seen(_transformed(function, given, way))]
            returned = function(*arguments, **keywords)
        if way == "inputs change afterwards":
            for leaf in leaves:
                leaf.add_(1)
        said = seen(returned)
        tensors = [t for t in tree_leaves(returned) if isinstance(t, torch.Tensor)]
        outs = [t for t in tensors if t.requires_grad and t.device.type != "meta"]
        if way == "inputs change before the backward":
            with torch.no_grad():
                for leaf in leaves:
                    leaf.add_(1)
        for turn in range(2 if way == "twice" else 1) if outs else ():
            used = outs[-1:] if way == "last" else outs
            loss = sum((n + 1) * (t.double() ** 2).sum() for n, t in enumerate(used))
            torch.autograd.backward(loss, retain_graph=turn == 0, create_graph=way == "create")  # type: ignore[arg-type]
        grads = [t.grad if t.is_leaf and t.requires_grad else None for t in leaves]
        same = [[_shares(t, other) for other in [*leaves, *tensors]] for t in tensors]
    except Exception as error:  # noqa: BLE001 - both sides must raise the same
        return [type(error).__name__, [] if isinstance(error, TypeError) else str(error).splitlines()[:1]]
    moved = [Counted(_version(t) != before) for t, before in zip(leaves, versions, strict=True)]
    return [said, [seen(g) for g in grads], same, [seen(t) for t in leaves], moved]


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _shares(one: torch.Tensor, other: torch.Tensor) -> str:
    if one is other:
        return "same"
    if "meta" in (one.device.type, other.device.type) or torch.sparse_coo in (one.layout, other.layout):
        return ""
    return "memory" * (
        one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr() and one.numel() > 0
    )


def _transformed(function: Callable[..., Any], given: Arguments, way: str) -> Any:
    places = [n for n, a in enumerate(given[0]) if isinstance(a, torch.Tensor) and a.is_floating_point()]
    tensors = tuple(given[0][n].detach() for n in places)

    def of(*changed: torch.Tensor) -> Any:
        arguments = [changed[places.index(n)] if n in places else a for n, a in enumerate(given[0])]
        return function(*arguments, **given[1])

    if way == "jvp":
        return torch.func.jvp(of, tensors, tuple(torch.ones_like(t) for t in tensors))
    return torch.func.vmap(of)(*(torch.stack([t, t]) for t in tensors))


def seen(value: Any) -> Any:
    """What can be seen of a value, as plain data."""
    if isinstance(value, torch.Tensor):
        strided = value.layout == torch.strided
        plain = value.detach().double().to_dense().flatten().tolist() if value.device.type != "meta" else []
        # the stride of an axis of one element addresses nothing
        place = [s for s, n in zip(value.stride(), value.shape, strict=True) if n != 1] if strided else []
        return [type(value).__name__, str(value.dtype), list(value.shape), place, value.requires_grad, str(value.device), plain]  # fmt: skip
    if isinstance(value, dict):
        return {key: seen(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [type(value).__name__, *map(seen, value)]
    return value if isinstance(value, float) else repr(value)


def alike(one: Any, other: Any, slack: float = 1e-4) -> bool:
    """Whether two outcomes are the same but for rounding: floats by ``slack``, relative above 1."""
    if isinstance(one, float) and isinstance(other, float):
        return (
            (math.isnan(one) and math.isnan(other))
            or one == other
            or abs(one - other) <= slack * max(1.0, abs(other))
        )
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(alike(one[k], other[k], slack) for k in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(alike(a, b, slack) for a, b in zip(one, other, strict=True))
    if isinstance(one, Counted):
        return one >= other
    return bool(one == other)


class Counted(int):
    """Whether torch counted a change of a tensor: a winner may count one that its original's kernels hide from torch."""


class _Own(torch.Tensor):
    """A class of tensors of the user's."""


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def odd_array_calls(function: Callable[..., Any], made: Callable[[], Arguments]) -> Iterator[Case]:
    """The same for a function of JAX."""
    import jax
    import jax.numpy as jnp

    is_array = lambda v: isinstance(v, jax.Array)  # noqa: E731

    def each(change: Callable[[Any], Any], most: int = 99) -> Callable[[], Arguments]:
        def of() -> Arguments:
            seen: list[int] = []
            one = lambda v: change(v) if is_array(v) and len(seen) < most and not seen.append(1) else v  # noqa: E731
            return jax.tree.map(one, made(), is_leaf=is_array)

        return of

    floats = lambda kind: lambda t: t.astype(kind) if jnp.issubdtype(t.dtype, jnp.floating) else t  # noqa: E731
    for way in ("once", "jit", "grad", "grad of jit", "jvp of jit", "vmap", "vmap of jit", "shapes"):
        yield f"as recorded: {way}", made, way
    changes = {
        "fewer rows": lambda t: t[: max(1, t.shape[0] // 2)], "larger": lambda t: jnp.concatenate([t, t]),
        "other dtype": floats(jnp.float32), "half": floats(jnp.float16), "bfloat": floats(jnp.bfloat16),
        "other integers": lambda t: t.astype(jnp.int8) if t.dtype.kind == "i" else t, "rank": lambda t: t[None],
        "flat": lambda t: t.reshape(-1), "empty": lambda t: t[:0], "of numpy": np.asarray, "numbers": lambda t: 2,
        "none": lambda t: None, "of torch": lambda t: torch.zeros(t.shape), "turned": lambda t: t.T,
    }  # fmt: skip
    for name, change in changes.items():
        yield name, each(change), "once"
        yield f"{name}, of the first", each(change, 1), "once"
    yield from _options(function, made)


def array_outcome(function: Callable[..., Any], given: Arguments, way: str) -> list[Any]:
    """All that a caller of a function of JAX can see of a call. ``way``: how it is transformed."""
    import jax

    leaves, tree = jax.tree.flatten(given)
    places = [n for n, leaf in enumerate(leaves) if isinstance(leaf, jax.Array) and leaf.dtype.kind in "fV"]
    places = places if way != "once" else []
    inner = way.removesuffix(" of jit")

    def of(*changed: Any) -> Any:
        new = list(leaves)
        for place, value in zip(places, changed, strict=True):
            new[place] = value
        arguments, keywords = jax.tree.unflatten(tree, new)
        return function(*arguments, **keywords)

    try:
        called = jax.jit(of) if "jit" in way else of
        given_to = [leaves[place] for place in places]
        if inner == "grad":
            loss = lambda *c: sum(
                t.astype("float32").sum() for t in jax.tree.leaves(called(*c)) if t.dtype.kind in "fV"
            )  # noqa: E731
            found = jax.grad(loss, tuple(range(len(places))))(*given_to)
        elif inner == "jvp":
            found = jax.jvp(called, tuple(given_to), tuple(given_to))
        elif inner == "vmap":
            found = jax.vmap(called)(*(jax.numpy.stack([t, t]) for t in given_to))
        else:
            found = jax.eval_shape(called, *given_to) if inner == "shapes" else called(*given_to)
    except Exception as error:  # noqa: BLE001 - both sides must raise the same
        return [type(error).__name__, [] if isinstance(error, TypeError) else str(error).splitlines()[:1]]
    said = [[type(t).__name__, str(t.dtype), list(t.shape), bool(getattr(t, "weak_type", False)),
             np.asarray(t, "float64").ravel().tolist() if hasattr(t, "addressable_data") else []]
            if hasattr(t, "dtype") else repr(t) for t in jax.tree.leaves(found)]  # fmt: skip
    return [said, str(jax.tree.structure(found)), [], []]


def compared(
    winner: Any,
    name: str,
    original: Callable[..., Any],
    cases: Iterable[Case],
    look: Callable[[Callable[..., Any], Arguments, str], list[Any]] = outcome,
    slack: float = 1e-4,
) -> Iterator[tuple[str, list[Any], bool]]:
    """A row for each odd call: its name, the outcomes of original and winner where they differ, and whether the winner
    served it. ``winner``: its module; it is called twice, and finds then what it has decided."""
    gone: list[int] = []
    vars(winner)["tilewright_original"] = lambda served: gone.append(1) or original
    function = getattr(winner, name)
    for case, arguments, way in cases:
        gone.clear()
        sides = []
        for side in (original, function, function):
            try:
                given = arguments()
            except Exception:  # noqa: BLE001 - no such call can be made of these tensors
                break
            sides.append(look(side, given, way))
        if sides:
            right = all(alike(side, sides[0], slack) for side in sides)
            yield case, [] if right else sides, not gone and len(sides[0]) > 2
