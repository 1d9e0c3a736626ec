"""A user's Pallas function as it stands, for each value of its block sizes: any Python, run in a confined child.

A kernel module whose only content is data (``ORIGINAL``) holds the files of the user's package that the function uses,
the text of the call, and where block sizes stand in those files. A child that sees neither inputs nor a clock writes
the files with the sizes of one candidate, calls the function on shapes, and hands back the jaxpr. Packages that are not
installed are placeholders, and the target's TPU is the device. That jaxpr is the candidate, and is judged as any is.
"""

import contextlib
import functools
import hashlib
import importlib
import inspect
import re
import sys
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
from jax._src import core, dtypes
from jax._src.pallas.mosaic.core import CompilerParams
from jax.experimental import pallas as pl
from jax.experimental import shard_map as old_shard_map
from jax.experimental.pallas import tpu as pltpu
from jax.extend.core import ClosedJaxpr

from tilewright.fitness.original import Site, data_of, texts_of
from tilewright.workers.child.frames import Frame
from tilewright.workers.intake.calls.objects import scope_of
from tilewright.workers.intake.child_program import undefined
from tilewright.workers.intake.source.knobs import with_params
from tilewright.workers.intake.source.load import load
from tilewright.workers.runners.pallas import jaxpr_names, trace

Params = Mapping[str, Any]


@dataclass(frozen=True)
class Original:
    """``path`` of the user's file below the root, and the function's name in it. ``call``: its arguments as text over
    ``operands`` and ``params``. ``sites``: by parameter, the numbers in ``files`` (text by path) that it replaces."""

    path: str
    function: str
    call: str
    operands: tuple[str, ...]
    files: Mapping[str, str]
    sites: Mapping[str, tuple[Site, ...]]

    @classmethod
    def of_source(cls, source: str) -> "Original":
        """Raises ValueError for a source that is no such module."""
        data = data_of(source)
        if data is None:
            raise ValueError("the module holds no function as it stands")
        return cls(**data)

    def source(self, declared: str) -> str:
        """The kernel module. ``declared``: the text of SPACE, DEFAULTS and CONSTRAINTS."""
        return (
            f'"""{self.function} of {Path(self.path).name} as it stands: what it traces to is the candidate."""\n\n'
            f"{declared}\nORIGINAL = {asdict(self)!r}\n"
        )

    def loaded(self, params: Params, folder: Path) -> Callable[..., Any]:
        """The user's function with the sizes of a candidate; its files are written below ``folder``."""
        texts = texts_of(self.files, self.sites, params)
        root = folder / hashlib.sha256(repr(sorted(texts.items())).encode()).hexdigest()[:16]
        for path, text in texts.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text, encoding="utf-8")
        _forget(root)
        module, _ = load(root / self.path, self.function, traced=False, root=root)
        return function_in(module, self.function, Path(self.path).name)

    def settled(self, texts: Mapping[str, str]) -> "Original":
        """With some parameters replaced by these texts: another parameter, or the value that the files have."""
        sites = {name: places for name, places in self.sites.items() if name not in texts}
        for name, text in texts.items():
            other = re.fullmatch(r'params\["(\w+)"\]', text)
            if other is not None and (name in self.sites or other[1] in sites):
                sites[other[1]] = (*sites.get(other[1], ()), *self.sites.get(name, ()))
        return replace(self, call=with_params(self.call, texts), sites=sites)

    def build(self, folder: Path) -> Callable[[Params], Callable[..., Any]]:
        """``build`` of the module: see ``runners.pallas.trace``."""

        @functools.lru_cache(maxsize=32)
        def load_once(values: tuple[tuple[str, int], ...]) -> Callable[..., Any]:
            return self.loaded(dict(values), folder)

        def build(params: Params) -> Callable[..., Any]:
            inside = {name: params[name] for name in self.sites if name in params}
            scope = {
                **scope_of(self.call),
                "jax": jax,
                "jnp": jnp,
                "params": dict(params),
                "original": load_once(tuple(inside.items())),
            }
            made = eval(f"lambda {', '.join(self.operands)}: original({self.call})", scope)

            def apply(*operands: Any) -> Any:
                return jax.tree.leaves(made(*operands))

            return apply

        return build


def function_in(module: types.ModuleType, name: str, file: str) -> Callable[..., Any]:
    """A function of a module, also of a class. Raises Refusal."""
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise undefined(file, name, module)
        found = getattr(found, part)
    made: Callable[..., Any] = found
    return made


def _forget(root: Path) -> None:
    """Forget modules of the names of files below ``root``, loaded before with other sizes."""
    tops = {path.stem for path in root.iterdir()} - {"jax", "jaxlib", "numpy"}
    for name in [name for name in sys.modules if name.partition(".")[0] in tops]:
        del sys.modules[name]
    importlib.invalidate_caches()


# -- the device that a function asks for ---------------------------------------------------------------------------


@contextlib.contextmanager
def on_chip(chip: Mapping[str, Any]) -> Iterator[None]:
    """While it is entered, code finds the target's TPU: ``kind`` and ``cores``."""
    device = types.SimpleNamespace(
        device_kind=chip["kind"],
        platform="tpu",
        num_cores=chip["cores"],
        id=0,
        process_index=0,
        client=types.SimpleNamespace(platform_version="", platform="tpu"),
        coords=(0, 0, 0),
        core_on_chip=0,
    )
    answers = {
        "devices": [device],
        "local_devices": [device],
        "device_count": 1,
        "local_device_count": 1,
        "default_backend": "tpu",
    }
    add_old_names()
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(jax, "jit", _jit_of(jax.jit)))
        stack.enter_context(mock.patch.object(jax, "shard_map", _alone(jax.shard_map)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            stack.enter_context(mock.patch.object(old_shard_map, "shard_map", _alone(jax.shard_map)))
        for name, answer in answers.items():
            stack.enter_context(mock.patch.object(jax, name, return_value=answer))
        stack.enter_context(trace.mesh_of(chip))
        yield


def _jit_of(jit: Callable[..., Any]) -> Callable[..., Any]:
    """``jax.jit`` without the options of its older versions, none of which changes what is traced."""
    known = set(inspect.signature(jit).parameters)

    @functools.wraps(jit)  # with its parameters, for one around this one
    def made(*functions: Any, **options: Any) -> Any:
        return jit(*functions, **{name: value for name, value in options.items() if name in known})

    return made


def _alone(shard_map: Callable[..., Any]) -> Callable[..., Any]:
    """``jax.shard_map``, which on a mesh of one device calls the function: there is one here."""

    def made(*functions: Any, mesh: Any = None, **options: Any) -> Any:
        if getattr(mesh, "size", 1) != 1:
            return shard_map(*functions, mesh=mesh, **options)
        names = getattr(mesh, "axis_names", ())
        if functions:
            return functools.partial(_on_one_device, names, functions[0])
        return functools.partial(functools.partial, _on_one_device, names)

    return made


def _on_one_device(names: Sequence[str], function: Callable[..., Any], *operands: Any) -> Any:
    """The function's result where each axis of these names has one device: a sum over them is its operand."""

    def reduced(reduce: Callable[..., Any], x: Any, axis_name: Any, **options: Any) -> Any:
        axes = axis_name if isinstance(axis_name, tuple | list) else (axis_name,)
        counted = "bool" in map(str, map(jnp.result_type, jax.tree.leaves(x)))  # their sum is int32
        return x if set(axes) <= set(names) and not counted else reduce(x, axis_name, **options)

    with contextlib.ExitStack() as stack:
        for name in ("psum", "pmax", "pmin"):
            within = functools.partial(reduced, getattr(jax.lax, name))
            stack.enter_context(mock.patch.object(jax.lax, name, within))
        return function(*operands)


def _load(ref: Any, idx: Any, mask: Any = None, other: Any = None) -> Any:
    """``pl.load`` of older versions; what a mask leaves out was anything."""
    return ref[idx] if other is None else jnp.where(mask, ref[idx], other)


def add_old_names() -> None:
    """Give JAX the names that public code uses from its older versions."""
    for module, name, now in (
        (pltpu, "TPUCompilerParams", pltpu.CompilerParams),
        (pltpu, "TPUMemorySpace", pltpu.MemorySpace),
        (pltpu.MemorySpace, "ANY", pl.ANY),
        (pltpu, "ANY", pl.ANY),
        (dtypes, "bit_width", dtypes.itemsize_bits),
        (pl, "load", _load),
        (pl, "store", lambda ref, idx, val, mask=None: pltpu.store(ref.at[idx], val, mask=mask)),
    ):
        if not hasattr(module, name):
            setattr(module, name, now)


# -- the jaxpr without what only watches it ------------------------------------------------------------------------


def plain_jaxpr(closed: ClosedJaxpr) -> ClosedJaxpr:
    """A jaxpr whose kernels have no options that only watch or place them: estimates of cost, names, debugging."""
    return ClosedJaxpr(_plain(closed.jaxpr), closed.consts)


def _plain(jaxpr: Any) -> Any:
    return jaxpr.replace(eqns=[_plain_equation(equation) for equation in jaxpr.eqns])


def _is_plain(tree: Any) -> bool:
    """Whether a tree has no node of a class of the user's."""
    data = tree.node_data()
    return data is None or (data[0] in (tuple, list, dict) and all(map(_is_plain, tree.children())))


def _plain_equation(equation: Any) -> Any:
    name, params = equation.primitive.name, dict(equation.params)
    for key, only in jaxpr_names.ONLY.get(name, {}).items():
        if key in params and key != "mesh":
            params[key] = only
    if name == "pallas_call":
        mapping = params["grid_mapping"]
        if not _is_plain(mapping.index_map_tree):
            leaves = mapping.index_map_tree.num_leaves
            params["grid_mapping"] = mapping.replace(index_map_tree=jax.tree.structure(((0,) * leaves, {})))
        options = params.get("compiler_params")
        if isinstance(options, CompilerParams):
            params["compiler_params"] = replace(options, **jaxpr_names.WITHHELD["CompilerParams"])
    for key, value in params.items():
        if isinstance(value, ClosedJaxpr | core.ClosedJaxpr):
            params[key] = plain_jaxpr(value)
    return equation.replace(params=params)


# -- the child -----------------------------------------------------------------------------------------------------


def run(job: Frame, answer: trace.Answer) -> None:
    """Serve one job of ``runners.pallas.trace`` whose source is a function as it stands."""

    def build_of(source: str) -> Callable[..., Any]:
        return Original.of_source(source).build(Path.cwd())

    with on_chip(job.data["chip"]):
        trace.run(job, answer, build_of, plain_jaxpr)
