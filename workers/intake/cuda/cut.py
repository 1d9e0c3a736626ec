"""A function cut where torch computes before and after its kernels, and its reference cut at the same operations.

What torch makes before the kernels becomes an argument, what it makes of their results is left out, on both sides. Two
operations are the same if they are one of ATen's, with the same numbers, of the same arguments and weights.
"""

import contextlib
import functools
import hashlib
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import cpp_extension
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from tilewright.workers.intake.calls.call_text import SHORT, TensorArgument, parse
from tilewright.workers.intake.child_program import Refusal, Request
from tilewright.workers.intake.cuda import host_function
from tilewright.workers.intake.cuda.host_code import Numbers
from tilewright.workers.intake.cuda.launch_text import pointers
from tilewright.workers.intake.judge.reference import flat, function_of
from tilewright.workers.intake.triton.call_site import argument_names
from tilewright.workers.intake.triton.recorder import record
from tilewright.workers.intake.triton.results import root_of
from tilewright.workers.intake.triton.stub_device import stub_device
from tilewright.workers.intake.triton.trace import Var, current

_MADE = ("empty", "zeros", "ones", "full", "new_")
_VALUES = {f"aten.{name}.default" for name in ("detach", "alias", "clone", "lift_fresh")}
_SHAPED = re.compile(r"aten\.(view|_unsafe_view|unsqueeze|squeeze|_reshape_alias)\.(default|dims?)")
"""Operations after which the elements, in their order, have another shape."""
Place = tuple[int, int, str]
"""An operation's number among the call's, of those on tensors, the number of a tensor there, and its name; 0 for what
the call returns."""


Tensors = list[torch.Tensor]
_LEFT = "what the part is given instead"


class _Done(BaseException):
    """All that is asked for has been met; files catch every Exception."""


class _Aten(TorchDispatchMode):
    """Names each result by ATen's operation and what it was given."""

    def __init__(self, notes: "_Notes") -> None:
        super().__init__()
        self._notes, self.names = notes, dict[int, str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        names = [parameter.name for parameter in func._schema.arguments]
        values = {p.name: p.default_value for p in func._schema.arguments if p.has_default_value()}
        values |= {**dict(zip(names, args, strict=False)), **(kwargs or {}), "device": None}
        if not values.get("stride", True):  # of a pooling, which then steps by its size
            values["stride"] = values.get("kernel_size")
        given, result = self._notes.named(values), func(*args, **(kwargs or {}))
        copied = str(func) == "aten._to_copy.default" and result.dtype == args[0].dtype
        if torch.Tag.nondeterministic_seeded not in func.tags:
            for number, tensor in enumerate(flat(result)):
                same = self._notes.named(args[0])[1] if copied or str(func) in _VALUES else ""
                if _SHAPED.fullmatch(str(func)):
                    same = self._notes.shaped(args[0], tensor)
                operation = str(func).replace("_.", ".")  # in place or not
                self.names[id(tensor)] = same or self._notes.node((operation, number, given))
                self._notes.name(tensor, self.names[id(tensor)])
        return result


class _Numbered(TorchFunctionMode):
    """Numbers torch's operations on tensors; a linear layer is a product and a sum, which files leave to a kernel."""

    _number = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given, name = _tensors((args, kwargs)), getattr(func, "__name__", "")
        if func is torch.nn.functional.linear and len(given) == 3:
            with self:
                return torch.matmul(given[0], given[1].t()) + given[2]
        self._number += bool(given) and name not in ("__get__", "__set__")  # hooks ask for those, too
        return self._met(func, name, args, dict(kwargs or {}), given)

    def _met(self, func: Any, name: str, args: Any, options: dict[str, Any], given: Tensors) -> Any:
        raise NotImplementedError


class _Notes(_Numbered):
    """Names a call's tensors while it runs without memory. ``nodes``: operations by the name of their result; ``own``:
    where a tensor was made; ``first``: its name before a kernel changed it; ``places``: where a result was first made;
    ``made``: where one that torch has not made is first used. ``kernels``: whether kernels write new memory."""

    def __init__(self, leaves: Mapping[str, torch.Tensor], kernels: bool) -> None:
        super().__init__()
        self.nodes, self.made, self._kernels = dict[str, Any](), dict[str, Place](), kernels
        self._before = dict[int, str]()
        self.alike, self._bases = dict[str, str](), dict[str, tuple[str, torch.Size]]()
        self.known: dict[int, tuple[torch.Tensor, int, str]] = {}
        self.own, self.places, self.first = dict[int, Place](), dict[str, Place](), dict[int, str]()
        for name, tensor in leaves.items():
            self.name(tensor, name)

    def _met(self, func: Any, name: str, args: Any, options: dict[str, Any], given: Tensors) -> Any:
        before = {id(t): (t, t._version, self.found(t)) for t in given}
        unknown = [t for t, _, known in before.values() if not known]
        result = func(*args, **options)
        stores = {t.untyped_storage()._cdata for t in unknown}
        viewed = any(t.untyped_storage()._cdata in stores for t in flat(result))  # what a kernel makes
        if viewed or not flat(result) or (self._kernels and name.startswith(_MADE)):
            return result
        for place, tensor in enumerate(given):
            if any(tensor is one for one in unknown):
                self.made[self.named(tensor)[1]] = (self._number, place, name)
        changed = {n: known for n, (t, version, known) in before.items() if t._version != version}
        self._before, aten = changed, _Aten(self)
        self.first |= dict.fromkeys(changed, "unknown")
        with contextlib.suppress(Exception), torch._C.DisableTorchFunction(), aten:
            again = flat(func(*args, **{k: v for k, v in options.items() if k != "device"}))
            self._before = {}
            for place, (one, two) in enumerate(zip(flat(result), again, strict=True)):
                if id(one) in before and id(one) not in changed:  # an argument as it was
                    continue
                self.name(one, aten.names.get(id(two)) or self.named(two)[1])
                self.own[id(one)], self.first[id(one)] = (self._number, place, name), self.found(one)
                self.places.setdefault(self.found(one), self.own[id(one)])
        self._before = {}
        return result

    def name(self, tensor: torch.Tensor, name: str) -> None:
        self.known[id(tensor)] = (tensor, tensor._version, name)

    def node(self, row: Any) -> str:
        name = hashlib.sha1(repr(row).encode()).hexdigest()
        self.nodes[name] = row
        return name

    def shaped(self, tensor: torch.Tensor, result: torch.Tensor) -> str:
        """The name of a tensor's elements in the shape of ``result``, however many shapes they had before."""
        own = self.named(tensor)[1]
        first, shape = self._bases.get(own, (own, tensor.shape))
        if result.shape == shape:
            return first
        name = self.node(("shape", first, repr(tuple(result.shape))))
        self._bases[name] = (first, shape)
        return name

    def found(self, tensor: torch.Tensor) -> str:
        """Its name; empty where it has none, or was written since."""
        if id(tensor) in self._before:  # what is changed in place, before it was
            return self._before[id(tensor)]
        kept, version, name = self.known.get(id(tensor), (None, 0, ""))
        return name if kept is tensor and version == tensor._version else ""

    def named(self, value: Any) -> Any:
        """A value with names in place of tensors."""
        if isinstance(value, torch.Tensor):
            if not self.found(value):
                self.name(value, f"made {self._kernels} {len(self.known)} {self._number}")
            return ("tensor", self.found(value))
        if isinstance(value, dict):
            return tuple((key, self.named(part)) for key, part in sorted(value.items()))
        return tuple(map(self.named, value)) if isinstance(value, list | tuple) else repr(value)


@dataclass(eq=False)
class Part(_Numbered):
    """The part of a function between torch's operations. ``place``: the function's file and name, empty for the
    reference's part, and the reference. ``inputs`` and ``weights``: the name of an argument, dtype and shape of what
    is not needed, or a value alone; ``given``: arguments in place of what operations make; ``wanted``: what is
    returned, of the function what operations are given, of the reference what they make."""

    place: tuple[str, str, str]
    inputs: Sequence[Any]
    weights: Mapping[str, Any]
    given: Mapping[Place, str]
    wanted: Sequence[Place]

    @functools.cached_property
    def _function(self) -> Callable[..., Any]:
        path, name, reference = self.place
        if path and cpp_extension.load_inline.__module__ == cpp_extension.__name__:
            raise RuntimeError(f"the part serves the calls that were tuned; call {name} itself for others")
        return layer(Path(path), name, reference)[0] if path else function_of(reference)

    def __call__(self, **operands: torch.Tensor) -> Any:
        """Raises Refusal where it does not do what it did."""
        function, self._number, self._found, self._operands = self._function, 0, dict[Place, Any](), operands
        wide = any(t.dtype == torch.float64 for t in operands.values())

        def value(known: Any) -> Any:
            if isinstance(known, str) or len(known) == 1:
                return operands[known] if isinstance(known, str) else known[0]
            dtype = getattr(torch, known[0])
            dtype = torch.float64 if wide and dtype.is_floating_point else dtype
            return torch.empty(known[1], dtype=dtype, device="meta")

        arguments, weights = [value(n) for n in self.inputs], {n: value(v) for n, v in self.weights.items()}
        own, trace = set(map(id, operands.values())), current()
        self._left = {id(v): v for v in (*arguments, *weights.values()) if id(v) not in own}
        for tensor in (v for v in arguments if isinstance(v, torch.Tensor) and id(v) in self._left):
            if trace is not None:  # a launch may say its sizes
                trace.add(Var(trace.fresh_name("left"), tensor, "foreign", foreign=_LEFT))
        with contextlib.suppress(_Done), self:
            returned = function(*arguments, **weights)
            self._number = 0
            self._keep("", flat(returned))
        kept = [self._found.get(place, (None, 0)) for place in self.wanted]
        made = [t for t, old in kept if t is not None and t._version == old and id(t) not in self._left]
        if len(made) < len(kept):
            raise Refusal(f"torch computes {_LEFT}, or something else at other sizes")
        return tuple(made) if made[1:] else made[0]

    def _met(self, func: Any, name: str, args: Any, options: dict[str, Any], given: Tensors) -> Any:
        if self.place[0]:
            self._keep(name, given)
        left = [t for t in given if id(t) in self._left]
        if left and len(left) < len(given) and (name.startswith("__i") or re.search(r"[a-z]_$", name)):
            raise Refusal(f"torch computes {_LEFT}, in place")
        if left:  # it has no memory, and its products are nobody's work
            bare = lambda v: v.to("meta") if isinstance(v, torch.Tensor) else v  # noqa: E731
            args, options = tree_map(bare, (args, options))
        with _disable_current_modes() if left else contextlib.nullcontext():
            result = func(*args, **options)
        at = (self._number, name) if given else None
        places = {place[1]: n for place, n in self.given.items() if place[::2] == at}
        parts = [self._operands[places[n]] if n in places else t for n, t in enumerate(flat(result))]
        if places and parts:
            result = parts[0] if isinstance(result, torch.Tensor) else type(result)(parts)
        self._left |= {id(t): t for n, t in enumerate(parts) if left and n not in places}
        if not self.place[0]:
            self._keep(name, flat(result))
        return result

    def _keep(self, name: str, tensors: Sequence[torch.Tensor]) -> None:
        self._found |= {(self._number, n, name): (t, t._version) for n, t in enumerate(tensors)}
        if all(place in self._found for place in self.wanted):
            raise _Done


def _tensors(value: Any) -> Tensors:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def layer(path: Path, name: str, reference: str) -> tuple[Callable[..., Any], dict[str, Any]]:
    """A function of a file that is given the weights that it has, by the reference's names for them; their rows."""
    function = host_function.found_function(path, name, reference)
    own = host_function.weights_of(function, reference)
    rows = {n: (str(t.dtype)[6:], tuple(t.shape)) for n, (_, t) in own.items()}
    return host_function.with_weights(function, own, [])[0], rows


def _same(one: _Notes, two: _Notes, bound: dict[str, str], first: Any, second: Any) -> bool:
    """Whether what torch makes of kernels' results is what the reference makes of tensors that ``bound`` then holds."""
    if isinstance(first, str) and first in one.made:
        return bound.setdefault(first, second) == second
    if isinstance(first, tuple) and isinstance(second, tuple) and len(first) == len(second):
        return all(_same(one, two, bound, a, b) for a, b in zip(first, second, strict=True))
    known = isinstance(first, str) and first in one.nodes and second in two.nodes
    if known and first != second and one.alike.get(first) != second:  # a network meets a tensor often
        if not _same(one, two, bound, one.nodes[first], two.nodes[second]):
            return False
        one.alike[first] = second
    return bool(first == second or known)


def _counterpart(one: _Notes, two: _Notes, bound: dict[str, str], name: str) -> str:
    """The reference's name of what torch made, perhaps of kernels' results that ``bound`` then holds; empty: none."""
    if name in two.places:
        return name
    for other in two.places:
        trial = dict(bound)
        if name in one.nodes and _same(one, two, trial, name, other):
            bound.update(trial)
            return other
        one.alike.clear()
    return ""


def cut(request: Request, why: Refusal) -> dict[str, str]:
    """The text of a file with both parts as functions, the name of the kernels', and its call. Raises ``why`` where the
    reference has no such part."""
    path, name, reference = (str(request[key]) for key in ("path", "function", "reference"))
    call, judge = parse(request["calls"][0]), function_of(reference)
    if call.keywords or request["calls"][1:] or any(isinstance(v, tuple | dict) for v in call.arguments):
        raise why
    host_function.read_extensions(Path(path).parent, Numbers(), [])
    with stub_device(request["part"]):
        function, rows = layer(Path(path), name, reference)
    names, own = argument_names(function, call), [*rows]
    known, given = dict(getattr(judge, "weights", {})), dict(zip(names, call.arguments, strict=True))
    rows |= {n: ("float32", tuple(shape)) for n, shape in known.items() if n not in rows}
    rows |= {n: (v.dtype, v.shape) for n, v in given.items() if isinstance(v, TensorArgument)}
    tensors = {n: torch.empty(row[1], dtype=getattr(torch, row[0]), device="meta") for n, row in rows.items()}
    one, two = _Notes(tensors, True), _Notes(tensors, False)

    def noted(notes: _Notes, called: Callable[..., Any], named: Iterable[str]) -> Any:
        with torch.no_grad(), notes:
            return called(*(tensors.get(n, v) for n, v in given.items()), **{n: tensors[n] for n in named})

    with stub_device(request["part"]):
        trace = record(lambda: noted(one, function, own), (), {}, tensors, [path])
    with torch.device("meta"):
        wanted, bound = [two.named(t)[1] for t in flat(noted(two, judge, known))], dict[str, str]()
    found = [one.named(t)[1] for t in trace.results]
    one.made |= {n: (0, at, "") for at, n in enumerate(found) if n.startswith("made") and n not in one.made}
    sys.setrecursionlimit(50_000)  # of a network as deep as it likes
    operands, before, there = dict[str, torch.Tensor](), dict[Place, str](), dict[Place, str]()
    for pointer in pointers(trace):
        var = trace.find(pointer.tensor)
        root = root_of(var) if var is not None else None
        known_as = one.first.get(id(root.tensor), "") if root is not None else ""
        there_as = _counterpart(one, two, bound, known_as) if known_as else ""
        if root is None or (known_as and not there_as):
            raise why
        if known_as:
            place = two.places[there_as]
            own_name = before.setdefault(one.own[id(root.tensor)], f"{place[2]}{len(before) + 1}")
            there[place], operands[own_name] = own_name, root.tensor
        elif root.kind == "input":
            operands[root.name] = root.tensor

    alike = len(found) == len(wanted) and _same(one, two, bound, tuple(found), tuple(wanted))
    if not alike or not bound or any(n not in two.places for n in bound.values()):
        raise why
    listed, passed = ", ".join(operands), ", ".join(f"{n}={n}" for n in operands)

    def text(of: tuple[str, str, str], by: Any, named: Iterable[str], out: Sequence[Place]) -> str:
        value = {n: n if n in operands else rows.get(n, (given.get(n),)) for n in (*given, *named)}
        return f"Part({of}, {[value[n] for n in given]}, { {n: value[n] for n in named} }, {by}, {out})"

    alone = f"{name.lower()}_kernels"
    shapes = [f"{SHORT[str(t.dtype)[6:]]}[{', '.join(map(str, t.shape))}]" for t in operands.values()]
    return {
        "function": alone,
        "call": ", ".join(shapes),
        "note": f"{why.what}: tuned is the part between, {alone}({listed}), beside the same part of the reference",
        "text": f'''"""The kernels of {name} in {Path(path).name} (``load_inline``), and the same part of the reference.

Written by `tilewright tune`: torch computes before or after them, in both files alike.
"""

from tilewright.workers.intake.cuda.cut import Part

KERNELS = {text((path, name, reference), before, own, [one.made[n] for n in bound])}
REFERENCE = {text(("", "", reference), there, known, [two.places[n] for n in bound.values()])}


def {alone}({listed}):
    return KERNELS({passed})


def reference({listed}):
    return REFERENCE({passed})
''',
    }
