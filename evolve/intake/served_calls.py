"""Which calls a winner serves. The text of this module stands in every winner's, which depends on no tilewright.

A winner's module holds ``SERVED`` and the names of this one: data, and as functions of a call's values by parameter
``taken``, the operands by name, and of those ``fits``, conditions on sizes. What is decided of a call is kept by all
that decides it (``known``), so that the next call alike costs microseconds.
"""

import enum
import importlib
import importlib.util
import inspect
import os
import re
import sys
import types
from collections.abc import Callable
from typing import Any


class TilewrightDefault:
    """Stands for a default value that only the original's file has."""

    def __repr__(self) -> str:
        return "default"


TILEWRIGHT_DEFAULT = TilewrightDefault()
TILEWRIGHT_TORCH = sys.modules.get("torch")
TILEWRIGHT_KIND = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"


def tilewright_text(value: Any) -> str:
    """A value as calls are told apart by it."""
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return "tensor"
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(tilewright_text, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {tilewright_text(value[key])}" for key in sorted(value)) + "}"
    kind, name = type(value), getattr(value, "__qualname__", "")
    if kind.__name__ == "device":
        return "device"
    if isinstance(value, enum.Enum):
        return f"{kind.__module__}.{kind.__qualname__}.{value.name}"
    if name and hasattr(value, "__module__"):
        return f"{value.__module__}.{name}".replace("jax.numpy.", "jnp.")
    if kind.__module__ in ("builtins", "torch", "numpy.dtypes") or not hasattr(value, "__dict__"):
        return repr(value)
    held = dict(vars(value))
    module: Any = getattr(getattr(TILEWRIGHT_TORCH, "nn", None), "Module", ())
    for name, plain in vars(module()).items() if isinstance(value, module) else ():  # what a new layer holds as well
        if held.get(name) == plain:
            del held[name]
    return f"{kind.__name__}{tilewright_text(held)}"


def tilewright_key(value: Any) -> Any:
    """All of a value that decides whether a call is served. Raises LookupError where its type does not say what that
    is, such as of an object that may change."""
    kind = type(value)
    if kind is int or kind is bool or kind is str or value is None:
        return kind, value
    if hasattr(value, "requires_grad"):
        return kind, value.dtype, value.shape, value.stride(), value.device, value.requires_grad
    if kind is tuple or kind is list:
        return kind, *map(tilewright_key, value)
    if kind is dict:
        return kind, *[(key, tilewright_key(part)) for key, part in value.items()]
    if kind is float:  # of which two that are equal may differ
        return kind, repr(value)
    named = kind is types.FunctionType and "<" not in value.__qualname__  # any other may hold tensors
    if named or isinstance(value, enum.Enum | TilewrightDefault) or kind.__module__ == "torch":
        return kind, value
    raise LookupError(kind)


def tilewright_mode(torch: Any) -> tuple[Any, ...]:
    """What torch is asked for beside the call; empty within a transformation of functions."""
    if torch._C._functorch.peek_interpreter_stack() is not None or torch.autograd.forward_ad._current_level >= 0:
        return ()
    place = torch.cuda.current_device() if TILEWRIGHT_KIND == "cuda" and torch.cuda.is_initialized() else None
    return torch.is_grad_enabled(), torch.is_autocast_enabled(TILEWRIGHT_KIND), place


def tilewright_is_array(jax: Any, tensors: list[Any]) -> bool:
    """Whether arrays are plain ones of JAX where its kernels run: on one TPU, or interpreted."""
    mode: Any = getattr(jax._src.config, "pallas_tpu_interpret_mode_context_manager", None)
    held = {d for t in tensors if type(t).__name__ == "ArrayImpl" for d in t.devices()}
    plain = all(type(t).__name__ in ("ArrayImpl", "DynamicJaxprTracer") for t in tensors) and len(held) < 2
    places = {jax.default_backend(), *(d.platform for d in held)}
    return plain and (places == {"tpu"} or getattr(mode, "value", None) is not None)


def tilewright_differentiable(
    jax: Any, own: dict[str, Any], run: Callable[..., Any], original: Callable[..., Any], given: Any
) -> Any:
    """What ``run`` makes of a call's values, with the derivatives of ``original``. ``own``: the operands among them."""
    leaves, tree = jax.tree.flatten(given)
    held = set(map(id, own.values()))
    places = [n for n, leaf in enumerate(leaves) if id(leaf) in held]
    if {id(leaves[n]) for n in places} != held:  # some lie within an object that JAX does not know
        return original(*given)

    def of(function: Callable[..., Any], *arrays: Any) -> Any:
        new = dict(zip(places, arrays, strict=True))
        return function(*jax.tree.unflatten(tree, [new.get(n, leaf) for n, leaf in enumerate(leaves)]))

    def rule(primals: Any, tangents: Any) -> Any:
        values, changes = jax.jvp(lambda *arrays: of(original, *arrays), primals, tangents)
        # an interpreted kernel's integers have tangents of integers, which no rule may give
        zero, floats = jax.custom_derivatives.zero_from_primal, jax.numpy.inexact
        kinds = jax.tree.map(lambda v: jax.numpy.issubdtype(v.dtype, floats), values)
        return values, jax.tree.map(lambda v, c, kept: c if kept else zero(v), values, changes, kinds)

    made = jax.custom_jvp(lambda *arrays: of(run, *arrays))
    made.defjvp(rule)
    return made(*(leaves[n] for n in places))


def tilewright_is_plain(tensors: list[Any], gradients: bool, asks: bool) -> bool:
    """Whether tensors are of no other kind than those that were tuned with, and no gradient is asked for, unless the
    backward was tuned too. ``asks``: the original's file asks tensors for ``requires_grad``, which it may act upon."""
    torch: Any = TILEWRIGHT_TORCH
    if torch is None or not all(type(t) in (torch.Tensor, torch.nn.Parameter) for t in tensors):
        return False
    place, mode = tensors[0].device, tilewright_mode(torch)
    return (
        place.type == TILEWRIGHT_KIND
        and len(mode) == 3
        and not mode[1]
        and mode[2] in (None, place.index)
        and all(t.device == place and t.layout == torch.strided and t.is_contiguous() for t in tensors)
        and (gradients or not ((asks or mode[0]) and any(t.requires_grad for t in tensors)))
    )


def tilewright_operands(served: dict[str, Any], *given: Any) -> dict[str, Any] | None:
    """The operands by name, of a call that the winner serves; None of any other. ``given``: a value by parameter."""
    known, key, serves = served["known"], None, None
    if not tilewright_unchanged(served):
        return None
    if TILEWRIGHT_TORCH is not None:
        try:
            key = (*map(tilewright_key, given), tilewright_mode(TILEWRIGHT_TORCH))
            serves = known.get(key)
        except (LookupError, AttributeError, RuntimeError, TypeError):
            key = None
    if serves is None:
        serves = tilewright_serves(served, given)
        if key is not None:
            if len(known) >= 1024:
                known.clear()
            known[key] = serves
    if not serves:
        return None
    found: dict[str, Any] = served["taken"](*given)
    if served["writes"] and len({t.untyped_storage().data_ptr() for t in found.values()}) < len(found):
        return None
    return found


def tilewright_unchanged(served: dict[str, Any]) -> bool:
    """Whether what the original reads beside its arguments is as it was when its kernels were recorded."""
    for modules, file, names, values in served["globals"]:
        for module in filter(None, map(sys.modules.get, modules)):
            held = module.__dict__.get
            if str(held("__file__")).endswith(file) and tuple(map(held, names)) != values:
                return False
    return bool(served["read"]() == served["was"])


def tilewright_serves(served: dict[str, Any], given: tuple[Any, ...]) -> bool:
    """Whether the winner serves a call, but for tensors that share memory."""
    if list(map(tilewright_text, given)) not in served["settled"]:
        return False
    found = served["taken"](*given)
    for (dtype, largest), tensor in zip(served["operands"], found.values(), strict=True):
        if str(tensor.dtype).rpartition(".")[2] != dtype or len(tensor.shape) != len(largest):
            return False
        if not all(0 < size <= most for size, most in zip(tensor.shape, largest, strict=True)):
            return False
    if served["jax"]:
        return tilewright_is_array(sys.modules["jax"], list(found.values())) and served["fits"](**found)
    return tilewright_is_plain(list(found.values()), *served["gradients"]) and served["fits"](**found)


def tilewright_given(values: dict[str, Any]) -> dict[str, Any]:
    """The values but defaults that only the original's file has."""
    return {name: value for name, value in values.items() if value is not TILEWRIGHT_DEFAULT}


def tilewright_filled(function: Any, *values: Any) -> list[Any]:
    """The last values of a call of ``function``, or of an autograd Function's ``apply``, with its own defaults."""
    taken = getattr(getattr(function, "__self__", None), "forward", function)
    own = list(inspect.signature(taken).parameters.values())[-len(values) :]
    return [p.default if v is TILEWRIGHT_DEFAULT else v for v, p in zip(values, own, strict=True)]


def tilewright_original(served: dict[str, Any]) -> Callable[..., Any]:
    """The function that serves every other call. Raises RuntimeError where it cannot be imported."""
    if "function" not in served:
        *places, module, name = served["original"]
        here = os.path.dirname(os.path.realpath(__file__))
        file, root = (os.path.normpath(os.path.join(here, place)) for place in places)
        found = plain = tilewright_imported(file, root, module, name)
        while hasattr(plain, "__wrapped__"):
            plain = plain.__wrapped__
        if getattr(plain, "__globals__", None) is globals():  # the winner was put where the original stood
            found = tilewright_imported(file, root, module, name, again=True)
        served["function"] = found
    function: Callable[..., Any] = served["function"]
    return function


def tilewright_imported(file: str, root: str, module: str, name: str, again: bool = False) -> Any:
    """The original, of a module that is loaded already, or of its file; ``again``: of its file. Raises RuntimeError."""
    try:
        loaded = [m for m in list(sys.modules.values()) if getattr(m, "__file__", None) == file and not again]
        found: Any = loaded[0] if loaded else None
        if found is None and "." in module and not again:
            sys.path.append(root)
            found = importlib.import_module(module)
        elif found is None:
            spec = importlib.util.spec_from_file_location(f"{module}_original", file)
            assert spec is not None and spec.loader is not None
            sys.modules[spec.name] = found = importlib.util.module_from_spec(spec)  # where dataclasses look
            sys.path.append(root)
            spec.loader.exec_module(found)
        made = getattr(found, "get_init_inputs", list)
        for text in re.findall(r"\w+(?:\([^()]*\))?|\[[^\[\]]*\]", name):
            if text[0] == "[":  # a function that makes several
                found = found[eval(text[1:-1], {"__builtins__": {}})]
                continue
            part, made_with, _ = text.partition("(")
            owner, found = found, getattr(found, part)
            if made_with:  # a function that makes the original, called with plain values
                found = eval(f"found({text[len(part) + 1 :]}", {"__builtins__": {}}, {"found": found})
            code = getattr(found, "__code__", None)
            if isinstance(owner, type) and code is not None and "self" in code.co_varnames[:1]:
                found = getattr(owner(*made()), part)
        return found(*made()).forward if isinstance(found, type) else found
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise RuntimeError(
            f"{name} was not tuned for this call, and the original in {file} cannot be imported: {why}"
        ) from error
