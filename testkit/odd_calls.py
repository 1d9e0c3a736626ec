"""Odd calls of a function, and all that a caller can see of each: by these a winner is compared with its original.

A case is a name, a maker of positional arguments and keywords, and the way of the call (see ``outcome``).
"""

import contextlib
import inspect
import math

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only


@contextlib.contextmanager
def _deterministic():
    # torch.use_deterministic_algorithms imports the compiler first, seconds
    torch._C._set_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch._C._set_deterministic_algorithms(False)


AMBIENT = {
    "deterministic": _deterministic,
    "without gradients": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "meta by default": lambda: torch.device("meta"),
}
"""What a call is made within, by the way of it."""

WAYS = ("once", "twice", "last", "create", "inputs change", *AMBIENT, "jvp", "vmap")


def _if_float(change):
    return lambda t: change(t) if t.is_floating_point() else t


class _Own(torch.Tensor):
    """A class of tensors of the user's."""


CHANGES = {
    "fewer rows": lambda t: t[:7].clone(),
    "one row": lambda t: t[:1].clone(),
    "narrower": lambda t: t[..., : max(1, t.shape[-1] // 2)].clone(),
    "larger": lambda t: torch.cat([t, t]),
    "other dtype": _if_float(torch.Tensor.double),
    "half": _if_float(torch.Tensor.half),
    "bfloat": _if_float(torch.Tensor.bfloat16),
    "other integers": lambda t: t if t.is_floating_point() else t.short(),
    "rank": lambda t: t[None],
    "flat": lambda t: t.reshape(-1),
    "empty": lambda t: t[:0],
    "with gaps": lambda t: torch.stack([t, t], -1)[..., 0],
    "turned": lambda t: t.mT.contiguous().mT if t.dim() > 1 else t,
    "spread": lambda t: t[:1].expand(t.shape),
    "one row of a wider": lambda t: torch.cat([t, t], -1)[:1, ..., : t.shape[-1]],
    "shifted": lambda t: torch.cat([t.reshape(-1)[:1], t.reshape(-1)])[1:].view(t.shape),
    "other device": lambda t: t.to("meta"),
    "of numpy": torch.Tensor.numpy,
    "numbers": lambda t: 2,
    "none": lambda t: None,
    "sparse": torch.Tensor.to_sparse,
    "subclass": lambda t: t.as_subclass(_Own),
    "parameter": lambda t: torch.nn.Parameter(t, requires_grad=False),
}
FIRST = ("fewer rows", "other dtype", "none", "larger", "with gaps")
"""Changes that are made of the first tensor alone, too."""


def odd_calls(function, made):
    """Cases beside the one that ``made`` makes. ``function``: it says how parameters are named."""

    def each(change, most=99):
        def of():
            left = iter(range(most))
            return tree_map_only(torch.Tensor, lambda t: t if next(left, None) is None else change(t), made())

        return of

    leaf = _if_float(torch.Tensor.requires_grad_)
    yield "as recorded", made, "once"
    for way in ("inputs change", *AMBIENT):
        yield way, made, way
    for name, change in CHANGES.items():
        yield name, each(change), "once"
        if name in FIRST:
            yield f"{name}, of the first", each(change, 1), "once"
    for way in WAYS:
        yield f"needs a gradient: {way}", each(leaf), way
    yield "gradient of a view", each(lambda t: leaf(t).view(t.shape)), "once"
    yield "one gradient", each(leaf, 1), "once"
    for name, like in (("one tensor", lambda one, t: one), ("one memory", torch.Tensor.view_as)):

        def shared(like=like):
            given, kept = made(), []
            of = lambda t: like(kept[0], t) if t.shape == kept[0].shape and t.dtype == kept[0].dtype else t  # noqa: E731
            return tree_map_only(torch.Tensor, lambda t: kept.append(t) or of(t), given)

        yield name, shared, "once"
    yield from _options(function, made)


def _options(function, made):
    yield "unknown option", lambda: (made()[0], {**made()[1], "nobody": 1}), "once"
    yield "too few", lambda: ([], {}), "once"
    yield "too many", lambda: ([*made()[0], *range(40)], made()[1]), "once"
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return
    if not all(p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) for p in parameters.values()):
        return
    defaults = {n: p.default for n, p in parameters.items() if p.default is not p.empty}

    def bound(**other):
        given, keywords = made()
        return [], {**dict(zip(parameters, given, strict=False)), **keywords, **other}

    yield "by name", bound, "once"
    yield "defaults said", lambda: bound(**{n: v for n, v in defaults.items() if n not in bound()[1]}), "once"
    for name, value in {**defaults, **bound()[1]}.items():
        for other in _others(value):
            yield f"{name}={other!r}", lambda n=name, v=other: bound(**{n: v}), "once"


def _others(value):
    """Plain values that are not this one, or equal and of another type."""
    if isinstance(value, bool):
        return [not value, int(value)]
    if isinstance(value, int):
        return [value + 1, float(value), np.int64(value), *([bool(value)] if value in (0, 1) else [])]
    if isinstance(value, float):
        return [value * 2 + 1, math.nan, torch.tensor(value), *([int(value)] if value == int(value) else [])]
    return [value.upper(), ""] if isinstance(value, str) else [1.0, True] if value is None else []


def outcome(function, given, way):
    """All that a caller can see of a call: what is returned, with gradients, what shares memory with what, and what
    became of the arguments; of one that fails the exception.

    ``way``: a name of AMBIENT, a transformation (``jvp``, ``vmap``), or what is done after the call: the backward runs
    ``twice``, of the ``last`` output alone, or makes a graph (``create``); the ``inputs change`` before it.
    """
    leaves = [t for t in tree_leaves(given) if isinstance(t, torch.Tensor)]
    try:
        with AMBIENT.get(way, contextlib.nullcontext)():
            call = _transformed(function, given, way) if way in ("jvp", "vmap") else function
            returned = call(*given[0], **given[1])
        if way == "inputs change":
            with torch.no_grad():
                for leaf in leaves:
                    leaf.add_(1)
        answer = seen(returned)
        tensors = [t for t in tree_leaves(returned) if isinstance(t, torch.Tensor)]
        outs = [t for t in tensors if t.requires_grad and t.device.type != "meta"]
        for turn in range(2 if way == "twice" else 1) if outs else ():
            loss = sum((n + 1) * (t.double() ** 2).sum() for n, t in enumerate(outs[-(way == "last") :]))
            torch.autograd.backward(loss, retain_graph=turn == 0, create_graph=way == "create")
        grads = [t.grad if t.is_leaf and t.requires_grad else None for t in leaves]
        same = [[_shares(t, other) for other in [*leaves, *tensors]] for t in tensors]
    except Exception as error:  # noqa: BLE001 - both sides must raise the same
        return _raised(error)
    return [answer, [seen(g) for g in grads], same, [seen(t) for t in leaves]]


def _raised(error):
    changed = "inplace" in str(error)  # of several inputs that were changed torch names one or another
    return [type(error).__name__, [] if isinstance(error, TypeError) or changed else str(error).splitlines()[:1]]


def _shares(one, other):
    if one is other:
        return "same"
    if "meta" in (one.device.type, other.device.type) or torch.sparse_coo in (one.layout, other.layout):
        return ""
    return "memory" * (one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr() and one.numel() > 0)


def _transformed(function, given, way):
    places = [n for n, a in enumerate(given[0]) if isinstance(a, torch.Tensor) and a.is_floating_point()]

    def call(*arguments, **keywords):
        def of(*changed):
            new = dict(zip(places, changed, strict=True))
            return function(*[new.get(n, a) for n, a in enumerate(arguments)], **keywords)

        tensors = tuple(arguments[n].detach() for n in places)
        if way == "jvp":
            return torch.func.jvp(of, tensors, tuple(torch.ones_like(t) for t in tensors))
        return torch.func.vmap(of)(*(torch.stack([t, t]) for t in tensors))

    return call


def seen(value):
    """What can be seen of a value, as plain data."""
    if isinstance(value, torch.Tensor):
        # the stride of an axis of one element addresses nothing
        strided = value.stride() if value.layout == torch.strided else ()
        place = [s for s, n in zip(strided, value.shape, strict=False) if n != 1]
        facts = [str(value.dtype), list(value.shape), place, value.requires_grad, str(value.device)]
        plain = [] if value.device.type == "meta" else value.detach().double().to_dense().flatten().tolist()
        return [type(value).__name__, *facts, plain]
    if isinstance(value, dict):
        return {key: seen(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [type(value).__name__, *map(seen, value)]
    return value if isinstance(value, float) else repr(value)


def alike(one, other):
    """Whether two outcomes are the same but for rounding."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-4, abs_tol=1e-4) or (one != one and other != other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(alike, one, other))
    return one == other


# -- functions of JAX ----------------------------------------------------------------------------------------------

ARRAY_WAYS = ("once", "jit", "grad", "grad of jit", "jvp of jit", "vmap", "vmap of jit", "shapes")


def odd_array_calls(function, made):
    """The same for a function of JAX."""
    import jax

    def each(change, most=99):
        def of():
            left = iter(range(most))
            one = lambda v: change(v) if isinstance(v, jax.Array) and next(left, None) is not None else v  # noqa: E731
            return jax.tree.map(one, made())

        return of

    kind = jax.numpy.dtype
    to = lambda of, dtype: lambda t: t.astype(dtype) if kind(t.dtype).kind in of else t  # noqa: E731
    for way in ARRAY_WAYS:
        yield f"as recorded: {way}", made, way
    changes = {
        "fewer rows": lambda t: t[: max(1, t.shape[0] // 2)],
        "larger": lambda t: jax.numpy.concatenate([t, t]),
        "half": to("fV", "float16"),
        "other integers": to("iu", "int8"),
        "rank": lambda t: t[None],
        "empty": lambda t: t[:0],
        "of numpy": np.asarray,
        "none": lambda t: None,
        "of torch": lambda t: torch.zeros(t.shape),
        "turned": lambda t: t.T,
    }
    for name, change in changes.items():
        yield name, each(change), "once"
        yield f"{name}, of the first", each(change, 1), "once"
    yield from _options(function, made)


def array_outcome(function, given, way):
    """All that a caller of a function of JAX can see of a call. ``way``: how it is transformed."""
    import jax

    leaves, tree = jax.tree.flatten(given)
    floats = [n for n, leaf in enumerate(leaves) if isinstance(leaf, jax.Array) and leaf.dtype.kind in "fV"]
    places = floats if way != "once" else []

    def of(*changed):
        new = dict(zip(places, changed, strict=True))
        arguments, keywords = jax.tree.unflatten(tree, [new.get(n, leaf) for n, leaf in enumerate(leaves)])
        return function(*arguments, **keywords)

    called, to = jax.jit(of) if "jit" in way else of, [leaves[place] for place in places]
    ways = {
        "grad": lambda: jax.grad(
            lambda *c: sum(t.astype("float32").sum() for t in jax.tree.leaves(called(*c))), tuple(range(len(to)))
        )(*to),
        "jvp": lambda: jax.jvp(called, tuple(to), tuple(to)),
        "vmap": lambda: jax.vmap(called)(*(jax.numpy.stack([t, t]) for t in to)),
        "shapes": lambda: jax.eval_shape(called, *to),
    }
    try:
        found = ways.get(way.removesuffix(" of jit"), lambda: called(*to))()
    except Exception as error:  # noqa: BLE001 - both sides must raise the same
        return _raised(error)

    def shown(t):
        values = np.asarray(t, "float64").ravel().tolist() if hasattr(t, "addressable_data") else []
        return [type(t).__name__, str(t.dtype), list(t.shape), bool(getattr(t, "weak_type", False)), values]

    answer = [shown(t) if hasattr(t, "dtype") else repr(t) for t in jax.tree.leaves(found)]
    return [answer, str(jax.tree.structure(found)), [], []]


def compared(winner, name, original, cases, look=outcome):
    """For each case its name, the outcomes of original and winner where they differ, whether the winner served it, and
    whether the original differs from itself there, so that nothing is compared. ``winner``: its module; it is called
    twice, and finds then what it has decided."""
    gone = []
    vars(winner)["tilewright_original"] = lambda served: gone.append(1) or original
    function = getattr(winner, name)
    for case, made, way in cases:
        gone.clear()
        sides = []
        for side in (original, function, function):
            try:
                given = made()
            except Exception:  # noqa: BLE001 - no such call can be made of these tensors
                break
            sides.append(look(side, given, way))
        if sides:
            served = not gone and len(sides[0]) > 2
            right = all(alike(side, sides[0]) for side in sides)
            undefined = not right and _undefined(original, made, way, look)
            yield case, [] if right or undefined else sides, served, undefined


def _undefined(function, made, way, look):
    """Whether a function's own outcome follows what lies in memory that nobody wrote, or beside its tensors."""
    places = {t.device for t in tree_leaves(made()) if isinstance(t, torch.Tensor)}
    sides = []
    for value in (1.5, 0.0):
        # freed at once: the next tensors lie there, or before it
        [torch.full((4**n,), value, device=p) for p in places for n in range(3, 10) for _ in range(8)]
        given = made()
        with _FilledMemory(value):
            sides.append(look(function, given, way))
    return not alike(*sides)


class _FilledMemory(TorchDispatchMode):
    """A mode in which new tensors that torch leaves unwritten hold ``value``: the allocator alone may hand out other
    memory than what was freed last."""

    def __init__(self, value):
        super().__init__()
        self.value = value

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        return made.fill_(self.value) if "empty" in func.overloadpacket.__name__ else made
