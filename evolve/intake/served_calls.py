"""Which calls a winner serves. The text of this module stands in every winner's, which depends on no tilewright.

A winner's module holds ``SERVED`` (data), ``tilewright_fits`` (conditions on sizes) and the names of this one.
"""

import enum
import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any


class TilewrightDefault:
    """Stands for a default value that only the original's file has."""

    def __repr__(self) -> str:
        return "default"


TILEWRIGHT_DEFAULT = TilewrightDefault()


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
    return f"{kind.__name__}{tilewright_text(dict(vars(value)))}"


def tilewright_is_plain(tensors: list[Any], writes: bool, gradients: bool = False) -> bool:
    """Whether tensors are of no other kind than those that were tuned with, and no gradient is asked for, unless the
    backward was tuned too."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(tensors[0], torch.Tensor):
        return all(type(t).__name__ in ("ArrayImpl", "DynamicJaxprTracer", "ndarray") for t in tensors)
    place = tensors[0].device
    kind = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
    return (
        all(type(t) in (torch.Tensor, torch.nn.Parameter) for t in tensors)
        and place.type == kind
        and (kind == "cpu" or place.index == torch.cuda.current_device())
        and all(t.device == place and t.is_contiguous() for t in tensors)
        and (gradients or not (torch.is_grad_enabled() and any(t.requires_grad for t in tensors)))
        and torch._C._functorch.peek_interpreter_stack() is None
        and torch.autograd.forward_ad._current_level < 0
        and not torch.is_autocast_enabled(kind)
        and not (writes and len({t.untyped_storage().data_ptr() for t in tensors}) < len(tensors))
    )


def tilewright_operands(
    served: dict[str, Any], fits: Callable[..., bool], given: dict[str, Any]
) -> dict[str, Any] | None:
    """The operands by name, of a call that the winner serves; None of any other."""
    if {name: tilewright_text(value) for name, value in given.items()} not in served["settled"]:
        return None
    found = {}
    for name, place, dtype, order, largest in served["operands"]:
        tensor: Any = given
        for part in place:
            plain = isinstance(tensor, dict | list | tuple) and not hasattr(tensor, "_fields")
            tensor = tensor[part] if plain else getattr(tensor, str(part))
        if str(tensor.dtype).rpartition(".")[2] != dtype or len(tensor.shape) != len(largest):
            return None
        tensor = tensor.permute([order.index(n) for n in range(len(order))]) if order else tensor
        if not all(0 < size <= most for size, most in zip(tensor.shape, largest, strict=True)):
            return None
        found[name] = tensor
    plain = tilewright_is_plain(list(found.values()), served["writes"], served["gradients"])
    return found if plain and fits(**found) else None


def tilewright_modules_of(file: str) -> Iterator[Any]:
    for module in list(sys.modules.values()):
        if getattr(module, "__file__", None) == file:
            yield module


def tilewright_original(served: dict[str, Any]) -> Callable[..., Any]:
    """The function that serves every other call. Raises RuntimeError where it cannot be imported."""
    file, root, module, name = served["original"]
    try:
        found: Any = next(tilewright_modules_of(file), None)
        if found is None and "." in module:
            sys.path.append(root)
            found = importlib.import_module(module)
        elif found is None:
            spec = importlib.util.spec_from_file_location(f"{module}_original", file)
            assert spec is not None and spec.loader is not None
            found = importlib.util.module_from_spec(spec)
            sys.path.append(root)
            spec.loader.exec_module(found)
        made = getattr(found, "get_init_inputs", list)
        for text in re.findall(r"\w+(?:\([^()]*\))?", name):
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
