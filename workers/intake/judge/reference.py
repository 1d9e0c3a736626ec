"""The reference: the function that states what a kernel must compute, and its results as arrays."""

import contextlib
import functools
import importlib
import inspect
import json
import threading
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.workers.intake.calls.dtypes import EXTENDED, numpy_dtype
from tilewright.workers.intake.calls.objects import absent, scope_of

LAUNCHED = "launched"
_MAKING = threading.Lock()

Places = Mapping[int, Sequence[np.ndarray]] | None


def function_of(reference: str) -> Callable[..., Any]:
    """The function that ``module.name`` or ``FILE:name`` stands for. Raises LookupError.

    A flashinfer-bench Definition (``FILE.json:run``) holds its function's source. ``itself:FILE`` is a kernel module,
    run with its defaults; ``launched:FILE`` the same in this process, on the device where its tensors lie.
    """
    if reference.startswith(f"{LAUNCHED}:"):
        from tilewright.workers.intake.judge.self_reference import launching_function

        return launching_function(Path(reference.partition(":")[2]))
    if reference.startswith("itself:"):
        with _MAKING:  # of threads that ask at once, one makes the process
            return _process_of(Path(reference.partition(":")[2]).read_text(encoding="utf-8-sig"))
    path, colon, name = reference.rpartition(":")
    if path.endswith(".json"):
        module: Any = _definition(Path(path))
    elif colon:
        module = _file(Path(path), name)
    else:
        parts = reference.split(".")
        module, name = _module(parts)
    value: Any = module
    for part in name.split("."):
        if not hasattr(value, part):
            known = absent(Path(path).name, name, value) if colon else f"{reference} names nothing"
            raise LookupError(f"--reference: {known}")
        value = getattr(value, part)
    if isinstance(value, type) and hasattr(module, "get_init_inputs"):
        module = _file(Path(path), None)  # with what the inputs of its making need
        return forward_of(getattr(module, name), module.get_init_inputs())
    if isinstance(value, type) or not callable(value):
        raise LookupError(f"--reference: {reference} is no function")
    return value


def _file(path: Path, name: str | None) -> types.ModuleType:
    """A file's module, with what ``name`` needs, or all. Raises LookupError where it is not Python."""
    from tilewright.workers.intake.source.load import load

    try:
        return load(path, name, traced=False)[0]
    except SyntaxError as error:
        raise LookupError(f"--reference: line {error.lineno} of {path.name} is not Python: {error.msg}") from error


@functools.cache
def _process_of(source: str) -> Callable[..., Any]:
    """The process of a kernel module, one for each text; it answers any number of calls."""
    from tilewright.workers.intake.judge.self_reference import ModuleProcess

    return ModuleProcess(source)


def _definition(path: Path) -> Any:
    try:
        source = json.loads(path.read_text(encoding="utf-8"))["reference"]
        made = types.ModuleType(path.stem)
        exec(compile(source, path.name, "exec"), made.__dict__)
    except (OSError, ValueError, KeyError, TypeError, SyntaxError) as error:
        raise LookupError(f"--reference: {path.name} is no Definition with a reference: {error}") from error
    return made


def forward_of(model: Any, given: Sequence[Any]) -> Callable[..., Any]:
    """A KernelBench ``Model`` as a function of its inputs, computed in the inputs' precision.

    Its weights come from seed 0, or from keywords of their names with ``_`` for dots. The attribute ``weights`` has
    their shapes.
    """
    import torch

    torch.manual_seed(0)
    keywords = len(given) == 2 and isinstance(given[0], list | tuple) and isinstance(given[1], dict)
    made = model(*given[0], **given[1]) if keywords else model(*given)

    own = {name.replace(".", "_"): name for name in made.state_dict()}

    def reference(*values: Any, **named: Any) -> Any:
        floats = [v.dtype for v in values if hasattr(v, "is_floating_point") and v.is_floating_point()]
        weights = {own[name]: value for name, value in named.items() if name in own}
        return torch.func.functional_call(made.to(floats[0]) if floats else made, weights, values)

    reference.weights = {name: made.state_dict()[of].shape for name, of in own.items()}  # type: ignore[attr-defined]

    return reference


def _module(parts: Sequence[str]) -> tuple[Any, str]:
    for cut in range(len(parts) - 1, 0, -1):
        try:
            return importlib.import_module(".".join(parts[:cut])), ".".join(parts[cut:])
        except ModuleNotFoundError:
            continue
    raise LookupError(f"--reference: {'.'.join(parts)} cannot be imported")


def run_reference(
    function: Callable[..., Any], call: str, inputs: Mapping[str, Any], precision: str, at: Places = None
) -> list[np.ndarray]:
    """The reference's results as arrays. Float inputs are converted to ``precision`` ("": not). Tensors stay on their
    device.

    ``at``: by a result's number, indices along its axes; then only the elements at their crossings are returned.
    """
    if getattr(function, "takes_arrays", False):  # a kernel module in a process of its own
        given = {n: np.asarray(a) if isinstance(a, np.ndarray | np.generic) else to_array(a) for n, a in inputs.items()}
        return _crossing([as_float64(a) for a in function(in_precision(given, precision))], at)
    if is_jax(function):
        return _crossing(_run_jax(function, call, inputs, precision), at)
    import torch

    given = {name: to_tensor(array, precision) for name, array in inputs.items()}
    scope = {**scope_of(call), "torch": torch, "reference": function, **given}
    with torch.no_grad(), _one_thread():
        # torch selects no 8-bit floats, of which all are soon handed over
        parts = [part if part.element_size() > 1 else to_array(part) for part in reference_results(call, scope)]
        return [p if isinstance(p, np.ndarray) else to_array(p) for p in _crossing(parts, at)]


def _crossing(results: Sequence[Any], at: Places) -> list[Any]:
    """Results cut to the crossings of indices, as in ``run_reference``; tensors stay on their device."""
    found = list(results)
    for number, axes in (at or {}).items():
        for axis, places in enumerate(axes if number < len(found) else ()):
            if len(places) < found[number].shape[axis]:
                found[number] = found[number][(slice(None),) * axis + (places,)]
    return found


BACKWARD = "; gradients of "
"""Separates a call's text from the gradients that are results as well, ``(x, w,)``, and those given, ``(g,)``."""


def reference_results(call: str, scope: Mapping[str, Any]) -> list[Any]:
    """Tensors that ``scope["reference"]`` returns for a call, then the gradients that the text asks for, by autograd.

    Raises what the reference raises, and ValueError if its results lack gradients.
    """
    import torch

    arguments, _, halves = call.partition(BACKWARD)
    known = {**scope, "__builtins__": {}}
    if not halves:
        return flat(eval(compile(f"reference({arguments})", "call", "eval"), known))
    known.update({n: t.detach() for n, t in scope.items() if isinstance(t, torch.Tensor)})
    leaves, given = eval(compile(halves, "call", "eval"), known)
    with torch.enable_grad():
        for leaf in leaves:
            leaf.requires_grad_()
        found = flat(eval(compile(f"reference({arguments})", "call", "eval"), known))
        outputs = [t for t in found if t.is_floating_point()]
        if len(outputs) != len(given) or not all(t.requires_grad for t in outputs):
            raise ValueError("the reference's results are not those that have gradients")
        gradients = torch.autograd.grad(
            outputs,
            leaves,
            [g.to(t.dtype).reshape(t.shape) for g, t in zip(given, outputs, strict=True)],
            allow_unused=True,
            materialize_grads=True,
        )
    return [*found, *gradients]


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Run torch on one thread: beside compilers, threads that wait for each other take fifty times as long."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def is_jax(function: Callable[..., Any]) -> bool:
    """Whether a reference takes JAX arrays: it is JAX's own, or its module imports JAX and not torch."""
    module = str(getattr(function, "__module__", "") or "")
    known = getattr(inspect.unwrap(function), "__globals__", {})
    modules = {str(getattr(v, "__name__", "")) for v in known.values() if inspect.ismodule(v)}
    return module.partition(".")[0] in ("jax", "jaxlib") or (
        "torch" not in modules and any(n.startswith("jax") for n in modules)
    )


def _run_jax(
    function: Callable[..., Any], call: str, inputs: Mapping[str, np.ndarray], precision: str
) -> list[np.ndarray]:
    import jax

    with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
        scope = {
            **scope_of(call),
            "jax": jax,
            "jnp": jax.numpy,
            "reference": function,
            **{n: jax.numpy.asarray(a) for n, a in in_precision(inputs, precision).items()},
        }
        result = eval(compile(f"reference({call})", "call", "eval"), {"__builtins__": {}}, scope)
        return [as_float64(np.asarray(leaf)) for leaf in jax.tree_util.tree_leaves(result)]


def in_precision(inputs: Mapping[str, np.ndarray], precision: str) -> dict[str, np.ndarray]:
    """Inputs with floats converted to ``precision``; "" converts none."""
    floats = {n for n, array in inputs.items() if array.dtype.kind == "f" or array.dtype.name in EXTENDED}
    return {n: array.astype(precision) if precision and n in floats else array for n, array in inputs.items()}


def as_float64(array: np.ndarray) -> np.ndarray:
    """Floats of 16 bits or more as float64; other arrays unchanged."""
    return array.astype(np.float64) if array.dtype.kind == "f" or array.dtype.name == "bfloat16" else array


def flat(result: Any) -> list[Any]:
    """The tensors of a nested result, in order."""
    if isinstance(result, dict):
        return flat(list(result.values()))
    if isinstance(result, tuple | list):
        return [tensor for part in result for tensor in flat(part)]
    return [result] if hasattr(result, "detach") else []


def to_tensor(array: Any, precision: str) -> Any:
    """A torch tensor with the values of an array or tensor; floats in ``precision`` unless that is empty."""
    import torch

    if isinstance(array, torch.Tensor):
        return array.to(getattr(torch, precision)) if precision and array.is_floating_point() else array
    array = np.asarray(array)  # an element that was picked of an operand without dimensions is a scalar
    if not (array.dtype.kind == "f" or array.dtype.name in EXTENDED):
        return torch.from_numpy(np.ascontiguousarray(array).copy())
    return torch.from_numpy(array.astype(np.float64)).to(getattr(torch, precision or array.dtype.name))


def to_array(tensor: Any) -> np.ndarray:
    """A tensor's values: floats as float64, 8-bit floats and others unchanged."""
    tensor = tensor.detach().cpu()
    name = str(tensor.dtype).removeprefix("torch.")
    if name.startswith("float8"):
        import torch

        return tensor.contiguous().view(torch.uint8).numpy().view(numpy_dtype(name))
    return tensor.double().numpy() if name.startswith(("float", "bfloat")) else tensor.numpy()
