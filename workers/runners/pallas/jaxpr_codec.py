"""A traced kernel as plain data: what leaves the process that ran its Python, to be interpreted and compiled.

A jaxpr is written as JSON with the arrays it holds beside it, and made again from that by names on lists: primitives,
data classes with their fields, enumerations, nodes of trees. Nothing in it is code, and reading it runs none of its
author's. Source locations are left out; sharding is that of one device. What the lists do not name has no such form and
raises ``NoForm``: callbacks, custom calls, options of the compiler that no kernel needs.
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import core, literals, tree_util
from jax._src.mesh import AbstractMesh, Mesh
from jax._src.named_sharding import UNSPECIFIED, NamedSharding, UnspecifiedValue
from jax._src.pallas import core as pallas_core
from jax._src.state import types as state

from tilewright.workers.child.frames import dtype_named
from tilewright.workers.runners.pallas import jaxpr_names as names

MAX_DEPTH = 64
MAX_VALUES = 2_000_000
"""Of one kernel, counting every item of every list."""


class NoForm(TypeError):
    """What a kernel holds, or what stands for one, has no form as data. The message is one line."""


@dataclasses.dataclass(frozen=True)
class Artefact:
    """A kernel for one workload: JSON text, and its arrays by place."""

    text: bytes
    arrays: tuple[np.ndarray, ...]

    @property
    def hash(self) -> str:
        """Identity of what is interpreted and compiled: 16 hex digits."""
        digest = hashlib.sha256(self.text)
        for array in self.arrays:
            digest.update(f"{array.dtype.name}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()[:16]


def encode(closed: core.ClosedJaxpr) -> Artefact:
    """Raises NoForm."""
    writer = _Writer()
    data = writer.closed(closed)
    return Artefact(json.dumps(data, separators=(",", ":")).encode(), tuple(writer.arrays))


def decode(artefact: Artefact) -> core.ClosedJaxpr:
    """Under the mesh that is current (``pallas_trace.mesh_of``). Raises NoForm."""
    try:
        data = json.loads(artefact.text)
        closed = _Reader(artefact.arrays).closed(data)
        core.check_jaxpr(closed.jaxpr)
    except NoForm:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, RuntimeError, AssertionError) as error:
        raise NoForm(f"not a kernel's data: {type(error).__name__}: {error}") from error
    return closed


def _jit_of(closed: core.ClosedJaxpr, like: str) -> dict[str, Any]:
    """Parameters of a plain call of ``closed``."""
    inputs, outputs = len(closed.jaxpr.invars), len(closed.jaxpr.outvars)
    return {
        "jaxpr": closed,
        "in_shardings": (UNSPECIFIED,) * inputs,
        "out_shardings": (UNSPECIFIED,) * outputs,
        "in_layouts": (None,) * inputs,
        "out_layouts": (None,) * outputs,
        "donated_invars": (False,) * inputs,
        "ctx_mesh": Mesh(np.empty((), dtype=object), ()),
        "name": like,
        "keep_unused": False,
        "inline": names.INLINE,
        "compiler_options_kvs": (),
    }


def _plain(name: Any) -> str:
    """A function's name as it may stand in a compiler's dumps."""
    return name if isinstance(name, str) and name.isidentifier() and name.isascii() else "kernel"


class _Writer:
    def __init__(self) -> None:
        self.arrays: list[np.ndarray] = []
        self._numbers: dict[Any, int] = {}
        self._bound = 0
        self._written: dict[int, tuple[int, core.ClosedJaxpr]] = {}

    def closed(self, closed: core.ClosedJaxpr) -> dict[str, Any]:
        return {"J": self._jaxpr(closed.jaxpr), "C": [self.value(c) for c in closed.consts]}

    def _inner(self, jaxpr: core.ClosedJaxpr | core.Jaxpr) -> dict[str, Any]:
        """Since JAX 0.11 one class is both, and an open one's constants are operands of its equation, or left out."""
        held = getattr(jaxpr, "consts", None)
        if held is None or any(c is None or isinstance(c, core.Tracer) for c in held):
            return {"oj": self._jaxpr(jaxpr)}
        return self._shared(jaxpr)

    def _shared(self, closed: core.ClosedJaxpr) -> dict[str, Any]:
        """A function that is called twice is written once: compilers tell the two apart."""
        if id(closed) in self._written:
            return {"cr": self._written[id(closed)][0]}
        data = self.closed(closed)
        self._written[id(closed)] = (len(self._written), closed)
        return {"cj": data}

    def _jaxpr(self, jaxpr: core.Jaxpr) -> dict[str, Any]:
        info = jaxpr.debug_info
        return {
            "K": [self._binder(v) for v in jaxpr.constvars],
            "I": [self._binder(v) for v in jaxpr.invars],
            "E": self._equations(jaxpr.eqns),
            "O": [self._atom(a) for a in jaxpr.outvars],
            "F": self._effects(jaxpr.effects),
            "H": jaxpr.is_high,
            "N": _plain(info.func_name if info is not None else ""),
        }

    def _binder(self, variable: core.Var) -> list[Any]:
        if getattr(variable, "initial_qdd", None) is not None:  # JAX 0.11.2 has no such types
            raise NoForm("a variable with a quasi-dynamic type")
        number = self._numbers[variable] = self._bound
        self._bound += 1
        return [number, self.value(variable.aval)]

    def _atom(self, atom: Any) -> Any:
        if isinstance(atom, core.Literal):
            return {"L": self.value(atom.val), "A": self.value(atom.aval)}
        if atom not in self._numbers:
            raise NoForm("a variable from outside its function")
        return self._numbers[atom]

    def _equations(self, equations: Sequence[core.JaxprEqn]) -> list[Any]:
        """All but those that only place an array: over a mesh, which is of one device here, or in a memory."""
        written = []
        for equation in equations:
            if equation.primitive.name in ("reshard", "with_memory_space_constraint"):
                self._numbers[equation.outvars[0]] = self._atom(equation.invars[0])
            else:
                written.append(self._equation(equation))
        return written

    def _equation(self, equation: core.JaxprEqn) -> list[Any]:
        name, params = equation.primitive.name, dict(equation.params)
        if name in names.INLINED:
            inner = params[names.INLINED[name]]
            name, params = "jit", _jit_of(inner, name)
            primitive = names.primitive("jit")
        else:
            primitive = equation.primitive
            if names.PRIMITIVES.get(name) is not primitive:
                raise NoForm(f"the primitive {name}")
        _refuse(name, params)
        inputs = [self._atom(a) for a in equation.invars]
        written = {key: self.value(value) for key, value in sorted(params.items())}
        outputs = [self._binder(v) for v in equation.outvars]
        effects = [] if name == "jit" and not equation.effects else self._effects(equation.effects)
        return [name, inputs, written, outputs, effects]

    def _effects(self, effects: Any) -> list[Any]:
        found = []
        for effect in effects:
            kind = names.EFFECTS.get(type(effect))
            if kind is None:
                raise NoForm(f"the effect {effect}")
            held = getattr(effect, "input", None)
            found.append([kind, self._numbers[held] if isinstance(held, core.Var) else held])
        return sorted(found, key=str)

    def value(self, value: Any) -> Any:
        """Any parameter, type or constant."""
        kind = type(value)
        if value is None or kind in (bool, int, str):
            return value
        if kind is float:
            return {"f": value.hex()}
        writer = _VALUES.get(kind)
        if writer is not None:
            return writer(self, value)
        if isinstance(value, np.dtype) or kind in names.DTYPES:
            return {"dt": names.DTYPES.get(kind) or value.name}
        if (isinstance(value, type) and issubclass(value, np.generic)) or kind is type(jnp.float32):
            return {"dt": np.dtype(value).name}
        if isinstance(value, np.ndarray | np.generic | jax.Array):
            return self._array(value, "a")
        if isinstance(value, NamedSharding):
            return self._sharding(value)
        if kind in names.RECORDS:
            return {"nt": names.RECORDS[kind], "v": [self.value(v) for v in value]}
        if kind in names.ENUM_NAMES:
            return {"e": [names.ENUM_NAMES[kind], value.name]}
        if (fields := names.fields_of(value)) is not None:
            return {"o": kind.__name__, "v": {n: self.value(getattr(value, n)) for n in fields}}
        raise NoForm(f"a value of type {kind.__module__}.{kind.__qualname__}")

    def _array(self, value: Any, tag: str) -> dict[str, Any]:
        array = np.asarray(value)
        self.arrays.append(array)
        return {tag: len(self.arrays) - 1}

    def _typed_array(self, value: Any) -> dict[str, Any]:
        return {**self._array(np.asarray(value), "a"), "w": bool(value.aval.weak_type)}

    def _shaped(self, aval: core.ShapedArray) -> dict[str, Any]:
        if not aval.manual_axis_type.empty:
            raise NoForm("an array that varies over a mesh")
        mesh = not aval.sharding.mesh.empty
        if mesh:
            self._sharding(aval.sharding)
        space = self.value(aval.memory_space)
        return {"sa": [list(aval.shape), self.value(aval.dtype), bool(aval.weak_type), mesh, space]}

    def _sharding(self, value: NamedSharding) -> dict[str, Any]:
        meshes = jax.sharding.get_abstract_mesh(), jax.sharding.AbstractMesh((), ())
        if value.mesh not in meshes or any(part is not None for part in value.spec):
            raise NoForm("a sharding over devices")
        return {"ns": len(value.spec)}

    def _reference(self, aval: state.AbstractRef) -> dict[str, Any]:
        return {"ref": [self.value(aval.inner_aval), self.value(aval.memory_space), self.value(aval.kind)]}

    def _tree(self, tree: Any) -> dict[str, Any]:
        data = tree.node_data()
        if data is None:
            return {"T": None if tree.num_leaves == 1 else "none"}
        kind, aux = data
        name = names.NODES.get(kind)
        if name is None:
            raise NoForm(f"a tree of {kind.__name__}")
        return {"T": name, "x": self.value(aux), "c": [self._tree(child) for child in tree.children()]}

    def _mesh(self, mesh: Mesh | AbstractMesh) -> dict[str, Any]:
        if not mesh.empty and mesh != jax.sharding.get_abstract_mesh():
            raise NoForm("a mesh of devices")
        return {"m": 0 if mesh.empty else 1}


def _sequence(tag: str) -> Callable[[_Writer, Any], dict[str, Any]]:
    return lambda writer, value: {tag: [writer.value(v) for v in value]}


_VALUES: Mapping[type, Callable[[_Writer, Any], Any]] = {
    tuple: _sequence("t"),
    list: _sequence("l"),
    dict: lambda writer, value: {"d": [[writer.value(k), writer.value(v)] for k, v in value.items()]},
    core.Jaxpr: _Writer._inner,
    core.ClosedJaxpr: _Writer._inner,
    core.ShapedArray: _Writer._shaped,
    state.AbstractRef: _Writer._reference,
    tree_util.PyTreeDef: _Writer._tree,
    UnspecifiedValue: lambda writer, value: {"u": 0},
    Mesh: _Writer._mesh,
    AbstractMesh: _Writer._mesh,
    **{kind: lambda writer, value: {"ft": [len(part) for part in value.unpack()]} for kind in names.GROUPS},
    pallas_core.DynamicGridDim: lambda writer, value: {"gd": 0},
    literals.TypedInt: lambda writer, value: {"ti": [int(value), value.dtype.name]},
    literals.TypedFloat: lambda writer, value: {"tf": [float(value).hex(), value.dtype.name]},
    literals.TypedNdArray: _Writer._typed_array,
}


def _refuse(name: str, params: Mapping[str, Any]) -> None:
    """Options that a kernel has no use for. Raises NoForm."""
    for key, allowed in names.ONLY.get(name, {}).items():
        if params.get(key, allowed) != allowed:
            raise NoForm(f"{name} with {key}={params[key]!r}"[:200])
    aliases = params.get("input_output_aliases", ())
    if not isinstance(aliases, tuple) or not all(
        isinstance(pair, tuple) and len(pair) == 2 and all(type(n) is int and n >= 0 for n in pair) for pair in aliases
    ):
        raise NoForm(f"{name} with input_output_aliases={aliases!r}"[:200])


class _Reader:
    def __init__(self, arrays: Sequence[np.ndarray]) -> None:
        self._arrays = arrays
        self._variables: dict[int, core.Var] = {}
        self._read: list[core.ClosedJaxpr] = []
        self._left = MAX_VALUES
        self._depth = 0

    def closed(self, data: Any) -> core.ClosedJaxpr:
        jaxpr = self._jaxpr(data["J"])
        return core.ClosedJaxpr(jaxpr, [self.value(c) for c in data["C"]])

    def _jaxpr(self, data: Any) -> core.Jaxpr:
        constants = [self._binder(v) for v in data["K"]]
        inputs = [self._binder(v) for v in data["I"]]
        equations = [self._equation(e) for e in data["E"]]
        outputs = [self._atom(a) for a in data["O"]]
        info = core.DebugInfo("kernel", _plain(data["N"]), None, None)
        effects = frozenset(self._effect(e) for e in data["F"])
        return core.Jaxpr(constants, inputs, outputs, equations, effects, info, bool(data["H"]))

    def _binder(self, data: Any) -> core.Var:
        number, aval = data
        if number in self._variables:
            raise NoForm("a variable that is bound twice")
        made = self._variables[number] = core.Var(self._aval(aval))
        return made

    def _aval(self, data: Any) -> core.AbstractValue:
        aval = self.value(data)
        if not isinstance(aval, core.AbstractValue):
            raise NoForm("a type that is none")
        return aval

    def _atom(self, data: Any) -> core.Var | core.Literal:
        if isinstance(data, dict):
            return core.Literal(self.value(data["L"]), self._aval(data["A"]))
        return self._variables[data]

    def _equation(self, data: Any) -> core.JaxprEqn:
        name, inputs, params, outputs, effects = data
        primitive = names.primitive(name)
        if primitive is None:
            raise NoForm(f"the primitive {str(name)[:60]}")
        operands = [self._atom(a) for a in inputs]
        made = {key: self.value(value) for key, value in params.items()}
        _refuse(name, made)
        results = [self._binder(v) for v in outputs]
        found = frozenset(self._effect(e) for e in effects)
        return core.new_jaxpr_eqn(operands, results, primitive, made, found)

    def _effect(self, data: Any) -> Any:
        kind, held = data
        return names.EFFECT_TYPES[kind](self._variables[held] if held is not None else None)

    def value(self, data: Any) -> Any:
        """What ``_Writer.value`` wrote."""
        self._left -= 1
        self._depth += 1
        if self._left < 0 or self._depth > MAX_DEPTH:
            raise NoForm("a kernel that is too large")
        try:
            if data is None or isinstance(data, bool | int | str):
                return data
            if not isinstance(data, dict) or not data:
                raise NoForm("a value that is none")
            tag = next(iter(data))
            return _READERS[tag](self, data[tag], data)
        finally:
            self._depth -= 1

    def _read_closed(self, item: Any, data: Any) -> core.ClosedJaxpr:
        made = self.closed(item)
        self._read.append(made)
        return made

    def _read_open(self, item: Any, data: Any) -> core.Jaxpr:
        made = self._jaxpr(item)
        return made.with_consts([None] * len(item["K"])) if hasattr(made, "with_consts") else made

    def _read_array(self, item: Any, data: Any) -> Any:
        array = self._arrays[item]
        if "w" not in data:
            return array if array.ndim else array[()]
        aval = core.ShapedArray(array.shape, array.dtype, weak_type=bool(data["w"]))
        return literals.TypedNdArray(array, aval)

    def _read_shaped(self, item: Any, data: Any) -> core.ShapedArray:
        shape, dtype, weak, mesh, space = item
        sharding = self._read_sharding(len(shape), None) if mesh else None
        kind = self.value(dtype)
        held = {"memory_space": self.value(space)}
        return core.ShapedArray(tuple(map(int, shape)), kind, bool(weak), sharding=sharding, **held)

    def _read_sharding(self, item: Any, data: Any) -> NamedSharding:
        spec = jax.sharding.PartitionSpec(*[None] * int(item))
        return NamedSharding(jax.sharding.get_abstract_mesh(), spec)

    def _read_reference(self, item: Any, data: Any) -> state.AbstractRef:
        inner, space, kind = item
        return state.AbstractRef(self._aval(inner), self.value(space), self.value(kind))

    def _read_tree(self, item: Any, data: Any) -> Any:
        if item is None:
            return tree_util.tree_structure(0)
        if item == "none":
            return tree_util.tree_structure(None)
        registry = tree_util.tracing_registry if _refers(data) else tree_util.default_registry
        return self._node(data, registry)

    def _node(self, data: Any, registry: Any) -> Any:
        if data["T"] is None:
            return tree_util.PyTreeDef.from_node_data_and_children(registry, None, [])
        if data["T"] == "none":
            node: Any = (type(None), None)
            return tree_util.PyTreeDef.from_node_data_and_children(registry, node, [])
        children = [self._node(child, registry) for child in data["c"]]
        node = (names.NODE_TYPES[data["T"]], self.value(data["x"]))
        return tree_util.PyTreeDef.from_node_data_and_children(registry, node, children)

    def _read_object(self, item: Any, data: Any) -> Any:
        kind = names.CLASSES[item]
        made = object.__new__(kind)
        fields = names.FIELDS[item]
        if set(data["v"]) != set(fields):
            raise NoForm(f"other fields of {item}")
        for field in fields:
            object.__setattr__(made, field, self.value(data["v"][field]))
        for field, default in names.WITHHELD.get(item, {}).items():
            object.__setattr__(made, field, default)
        return made


def _refers(data: Any) -> bool:
    """Whether a tree has views of references among its nodes, which another registry knows."""
    return data["T"] == "TransformedRef" or any(map(_refers, data.get("c", ())))


_READERS: Mapping[str, Callable[[_Reader, Any, Any], Any]] = {
    "gd": lambda reader, item, data: pallas_core.dynamic_grid_dim,
    "f": lambda reader, item, data: float.fromhex(item),
    "t": lambda reader, item, data: tuple(reader.value(v) for v in item),
    "l": lambda reader, item, data: [reader.value(v) for v in item],
    "d": lambda reader, item, data: {reader.value(k): reader.value(v) for k, v in item},
    "cj": _Reader._read_closed,
    "cr": lambda reader, item, data: reader._read[item],
    "oj": _Reader._read_open,
    "dt": lambda reader, item, data: names.EXTENDED[item]() if item in names.EXTENDED else dtype_named(item),
    "a": _Reader._read_array,
    "sa": _Reader._read_shaped,
    "ns": _Reader._read_sharding,
    "ref": _Reader._read_reference,
    "T": _Reader._read_tree,
    "e": lambda reader, item, data: names.ENUMS[item[0]][item[1]],
    "o": _Reader._read_object,
    "nt": lambda reader, item, data: names.RECORD_TYPES[item](*[reader.value(v) for v in data["v"]]),
    "u": lambda reader, item, data: UNSPECIFIED,
    "m": lambda reader, item, data: jax.sharding.get_abstract_mesh() if item else Mesh(np.empty((), dtype=object), ()),
    "ft": lambda reader, item, data: names.groups_of(item),
    "ti": lambda reader, item, data: literals.TypedInt(int(item[0]), dtype_named(item[1])),
    "tf": lambda reader, item, data: literals.TypedFloat(float.fromhex(item[0]), dtype_named(item[1])),
}
"""Tag of a value to what reads it."""
