"""Host code in C++ around kernels, followed by its syntax on tensors without memory: what it allocates and launches.

Followed are declarations, arithmetic, branches and loops on known numbers, torch's allocations, views and sizes,
AT_DISPATCH, and calls of other host functions. Anything else is refused.
"""

import math
import operator
import re
import struct
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from tilewright.workers.intake.child_program import Refusal
from tilewright.workers.intake.cuda.device_code import TYPES, DeviceCode, Parameter, within
from tilewright.workers.intake.source import traced_numbers
from tilewright.workers.intake.triton.trace import current, user_line

MOST_STEPS, EXACT = 100_000, 1 << 24
"""Expressions of one call; whole numbers above are not all floats."""

_DTYPES = {
    name: dtype
    for names, dtype in (
        ("Float Float32", torch.float32),
        ("Double Float64", torch.float64),
        ("Half Float16", torch.float16),
        ("BFloat16", torch.bfloat16),
        ("Int Int32", torch.int32),
        ("Long Int64", torch.int64),
        ("Bool", torch.bool),
        ("Byte UInt8", torch.uint8),
        ("Char Int8", torch.int8),
    )
    for word in names.split()
    for name in (word, f"k{word}")
}
_OWN = {"Half": "__half", "BFloat16": "__nv_bfloat16"}
_NOTHING = re.compile(r"nullptr|NULL|nullopt|kCUDA|kStrided|Contiguous|Preserve|cuda[A-Z]\w+")
_IGNORED = re.compile(
    r"cuda(GetLastError|PeekAtLastError|DeviceSynchronize|StreamSynchronize|FuncSetAttribute|"
    r"FuncSetCacheConfig|GetErrorString|SetDevice|GetDevice|(Stream|Event)(Create|Destroy|Record|Wait)\w*)|f?printf|"
    r"get(Current|Default)CUDAStream|getStreamFromPool|setCurrentCUDAStream|device_of"
)
"""Calls that launch nothing, and whose answers nobody uses."""

_SAME_TYPE = re.compile(r"(?:std::)?is_same(?:_v)?<\s*([\w:]+)\s*,\s*([\w:]+)\s*>(?:::value)?")
_CHECKS = re.compile(r"\w*(CHECK|ASSERT)\w*")

_QUALIFIERS = re.compile(r"\b(const|static|constexpr|inline|volatile)\b|std::|&")
_BINARY: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "<<": operator.lshift,
    ">>": operator.rshift,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "/": operator.truediv,
}
_MATHS = {f.__name__: traced_numbers.call(f.__name__, f) for f in (min, max, abs)} | {
    f.__name__: traced_numbers.call(f"math.{f.__name__}", f)
    for f in (math.ceil, math.floor, math.sqrt, math.log2, math.exp, math.pow)
}
Scope = ChainMap[str, Any]
"""Variables by name, those of inner blocks first; with a ``:`` before its name, the type of one."""

_NAMES = ("identifier", "field_identifier", "type_identifier")


@dataclass(frozen=True)
class Pointer:
    """An address in a tensor; ``kind``: what it points to, in C++; ``offset``: bytes."""

    tensor: torch.Tensor
    kind: str
    offset: Any = 0


@dataclass
class Launch:
    """A launch. ``templates``: names and numbers, which stand in ``parameters``; ``text``: the kernel's; ``arguments``:
    Pointer, number or None."""

    name: str
    templates: list[Any]
    parameters: list[Parameter]
    text: str
    grid: list[Any]
    block: list[Any]
    shared: Any
    arguments: list[Any]


@dataclass
class Numbers:
    """Whole numbers that texts name, by the name that a parameter of the search has. ``changed``: other values;
    ``decided``: what branches, loops and sizes depend on; ``refused``: what was not followed."""

    changed: Mapping[str, int] = field(default_factory=dict)
    known: dict[str, int] = field(default_factory=dict)
    decided: set[str] = field(default_factory=set)
    refused: list[Refusal] = field(default_factory=list)

    def named(self, name: str, value: int) -> Any:
        """A number that remembers its name."""
        while self.known.get(name, value) != value:
            name += "_"
        self.known[name] = value
        return traced_numbers.traced(self.changed.get(name, value), name, frozenset([name]))

    def settled(self, value: Any) -> Any:
        """A number that decides something, plain."""
        self.decided |= traced_numbers.atoms_of(value)
        return traced_numbers.settled(value)


class _Returned(Exception):
    def __init__(self, value: Any) -> None:
        self.value = value


class _Jump(Exception):
    """``break`` or ``continue``."""


class _Options(dict[str, Any]):
    """torch::TensorOptions, of which the dtype matters."""


class HostCode:
    """The host functions of a source."""

    def __init__(self, code: DeviceCode, numbers: Numbers) -> None:
        self._code, self._numbers, self._steps = code, numbers, 0

    def call(self, name: str, given: Sequence[Any], named: Mapping[str, Any] = {}) -> Any:
        """What a host function returns for tensors and numbers. Raises Refusal."""
        sized = named.keys() >= {"grid", "block"} or isinstance([*given, None][0], int | tuple)
        if sized and name in self._code.kernels:
            return self._launch_of_python(name, given, named)
        self._code.parameters(name)
        node = self._code.hosts[name]
        rows = next(within(node, "function_declarator")).child_by_field_name("parameters").named_children
        scope: Scope = ChainMap()
        for place, row in enumerate(row for row in rows if "parameter" in row.type):
            own, default = _name(row), row.child_by_field_name("default_value")
            if place < len(given) or own in named:
                value = given[place] if place < len(given) else named[own]
            elif default is not None:
                value = self._value(default, scope)
            else:
                raise Refusal(f"{name} is called without {own}", user_line())
            kind = row.text.decode().partition("=")[0].rpartition(own)[0]
            if "*" in kind and isinstance(value, torch.Tensor):
                value = self._pointer(value, self._kind(kind, {}), row)
            self._hold(own, kind, value, row, scope)
        try:
            self._run(node.child_by_field_name("body"), scope)
        except _Returned as returned:
            return returned.value
        return None

    def _launch_of_python(self, name: str, given: Sequence[Any], named: Mapping[str, Any]) -> None:
        """Note a launch that Python says: ``kernel((8, 1), (256, 1), 0, x, n)``, with grid and block first, or
        ``kernel(x, n, grid=(8, 1), block=(256, 1), shared_mem=0)``; arguments in a row or as a list ``args``. Raises
        Refusal."""
        if trace := current():
            trace.left_out.append(f"line {user_line()}: torch compiles no such extension; tuned is what it says")
        rows, node = [*given, *named.get("args", ())], self._code.tree(name)
        ahead = 0 if "grid" in named else max(2, len(rows) - len(self._code.kernels[name].parameters))
        sizes = [*(named[key] for key in ("grid", "block") if key in named), *rows[:ahead]]
        sizes += [value for key, value in named.items() if re.search("shared|smem", key)]
        found = [getattr(v, "tensor", v) for v in rows[ahead:]]
        rows = [self._pointer(v, "", node) if isinstance(v, torch.Tensor) else v for v in found]
        self._launch(name, "", [[*v] if isinstance(v, tuple) else v for v in sizes], rows, ChainMap(), node)

    def _refusal(self, node: Any, what: str = "is not followed") -> Refusal:
        return Refusal(f"host code in C++ {what}: {' '.join(node.text.decode().split())[:70]}", user_line())

    # -- statements ------------------------------------------------------------------------------

    def _run(self, node: Any, scope: Scope) -> None:
        part, kind = node.child_by_field_name, node.type
        if kind in ("compound_statement", "else_clause"):
            within_it = scope.new_child()
            for inner in node.named_children:
                self._run(inner, within_it)
        elif kind == "declaration":
            self._declare(node, scope)
        elif kind == "expression_statement":
            self._values(node.named_children, scope)
        elif kind == "return_statement":
            raise _Returned((self._values(node.named_children, scope) or [None])[0])
        elif kind == "if_statement":
            chosen = part("consequence" if self._truth(part("condition"), scope) else "alternative")
            if chosen is not None:
                self._run(chosen, scope)
        elif kind in ("for_statement", "while_statement"):
            scope = scope.new_child()
            if (first := part("initializer")) is not None:
                (self._run if first.type == "declaration" else self._value)(first, scope)
            while self._truth(part("condition"), scope):
                try:
                    self._run(part("body"), scope)
                except _Jump as jump:
                    if str(jump) == "break_statement":
                        break
                self._values([part("update")] if part("update") else [], scope)
        elif kind in ("break_statement", "continue_statement"):
            raise _Jump(kind)
        elif kind not in ("comment", "using_declaration", "alias_declaration", "type_definition"):
            raise self._refusal(node)

    def _declare(self, node: Any, scope: Scope) -> None:
        kind = node.child_by_field_name("type").text.decode()
        for part in node.children_by_field_name("declarator"):
            name, value = _name(part), part.child_by_field_name("value")
            if bound := next(within(part, "structured_binding_declarator"), None):
                names = [inner.text.decode() for inner in bound.named_children]
                for one, own in zip(names, self._value(value, scope), strict=True):
                    self._hold(one, kind, own, node, scope)
            elif part.type == "function_declarator":  # ``dim3 block(threads)`` looks like one
                rows = part.child_by_field_name("parameters").named_children
                given = self._values([self._code.expression(row.text.decode()) for row in rows], scope)
                self._hold(name, kind, self._made(kind, given, node), node, scope)
            elif value is None or value.type in ("argument_list", "initializer_list"):
                given = self._values(value.named_children if value else [], scope)
                listed = value and value.type == "initializer_list" and re.search("vector|array|Ref|tuple", kind)
                self._hold(name, kind, given if listed else self._made(kind, given, node), node, scope)
            else:
                pointer = "*" * (part.children[0].type == "pointer_declarator")
                self._hold(name, kind + pointer, self._value(value, scope), node, scope)
                if value.type == "number_literal" and type(scope[name]) is int and scope[name] > 1:
                    scope[name] = self._numbers.named(self._free(name.upper()), scope[name])

    def _hold(self, name: str, kind: str, value: Any, node: Any, scope: Scope) -> None:
        """Make a variable."""
        if "auto" in kind:
            kind = "double" if isinstance(value, float) else ""
        if kind.endswith("dim3") and isinstance(value, list):  # its numbers have no names of their own
            axes = [self._free(f"{name.upper()}_{axis}") for axis in "XYZ"]
            pairs = zip(axes, value, strict=True)
            value = [self._numbers.named(n, v) if type(v) is int and v > 1 else v for n, v in pairs]
        scope[name], scope[f":{name}"] = self._as(kind, value, node), kind

    def _free(self, name: str) -> str:
        """A macro's name that the device code does not use."""
        return self._free(f"{name}_") if re.search(rf"\b{name}\b", self._code.text) else name

    def _made(self, kind: str, given: list[Any], node: Any) -> Any:
        """A new object, by its constructor."""
        if kind.endswith("dim3"):
            return [*given, 1, 1, 1][:3]
        if "vector" in kind:
            return [given[1] if given[1:] else 0] * self._numbers.settled(given[0]) if given else []
        if "TensorOptions" in kind:
            return _Options()
        return self._as(kind, given[0], node) if len(given) == 1 and "Guard" not in kind else None

    # -- values ----------------------------------------------------------------------------------

    def _values(self, nodes: Sequence[Any], scope: Scope) -> list[Any]:
        return [self._value(node, scope) for node in nodes if node.type != "comment"]

    def _truth(self, node: Any, scope: Scope) -> bool:
        value = self._value(node, scope) if node is not None else True
        if isinstance(value, torch.Tensor):
            raise self._refusal(node, "decides by a tensor's values")
        return bool(self._numbers.settled(value))

    def _as(self, kind: str, value: Any, node: Any) -> Any:
        """A value as a variable of a type holds it."""
        if isinstance(value, list | tuple):
            return [*value]
        kind = " ".join(_QUALIFIERS.sub(" ", kind).split())
        if kind not in TYPES or not isinstance(value, int | float) or kind == "bool":
            return value
        number, wanted, code = traced_numbers.plain(value), TYPES[kind][1], getattr(value, "code", "")
        if wanted[0] in "fb":
            single = struct.unpack("f", struct.pack("f", number))[0] if wanted != "fp64" else float(number)
            if isinstance(number, int) and single != number:
                raise self._refusal(node, "rounds a whole number")
            if code and isinstance(number, float):
                return value  # rounded where the kernel is given it
            return traced_numbers.traced(single, f"float({code})", value.atoms) if code else single  # type: ignore[union-attr]
        if isinstance(number, float):
            number = int(number)
            value = traced_numbers.traced(number, f"int({code})", value.atoms) if code else number  # type: ignore[union-attr]
        bits, least = int(wanted[1:]), 0 if wanted[0] == "u" else -(1 << int(wanted[1:]) - 1)
        if not least <= number < (1 << bits) + least:
            raise self._refusal(node, f"holds {number} as {kind}")
        return value

    def _value(self, node: Any, scope: Scope) -> Any:
        self._steps += 1
        if self._steps > MOST_STEPS:
            raise self._refusal(node, "takes too long to follow")
        part, text, kind = node.child_by_field_name, node.text.decode(), node.type
        if kind == "number_literal":
            word = text.replace("'", "").lower()
            if re.search(r"[.e]", word) and not word.startswith("0x"):
                return self._as("float" if word.endswith("f") else "double", float(word.rstrip("fl")), node)
            return int(word.rstrip("ulz"), 0)
        if kind in ("string_literal", "concatenated_string", "true", "false", "null"):
            return {"true": True, "false": False, "nullptr": None}.get(text, text.strip('"'))
        if kind in ("parenthesized_expression", "condition_clause"):
            return self._values(node.named_children, scope)[-1]
        if kind == "initializer_list":
            return self._values(node.named_children, scope)
        if kind == "compound_literal_expression":
            given, made = self._values(part("value").named_children, scope), part("type").text.decode()
            return given if "vector" in made else self._made(made, given, node)
        if (types := _SAME_TYPE.fullmatch(text)) is not None:
            return self._kind(types[1], scope) == self._kind(types[2], scope)
        if kind in ("identifier", "qualified_identifier"):
            return self._word(text.rpartition("::")[2], node, scope)
        if kind == "sizeof_expression":
            return self._size(self._kind(node.named_children[0].text.decode().strip("()"), scope), node)
        if kind in ("unary_expression", "pointer_expression"):
            if text[0] == "!":
                return not self._truth(part("argument"), scope)
            if text[0] == "~":
                raise self._refusal(node)
            value = self._value(part("argument"), scope)
            return -value if text[0] == "-" else value
        if kind == "binary_expression":
            sign = part("operator").text.decode()
            if sign in ("&&", "||"):
                first = self._truth(part("left"), scope)
                return self._truth(part("right"), scope) if first == (sign == "&&") else first
            one, two = (self._value(part(side), scope) for side in ("left", "right"))
            return self._combined(sign, one, two, node)
        if kind == "conditional_expression":
            chosen = "consequence" if self._truth(part("condition"), scope) else "alternative"
            return self._value(part(chosen), scope)
        if kind == "cast_expression":
            return self._cast(part("type").text.decode(), part("value"), scope)
        if kind == "assignment_expression":
            sign, value = part("operator").text.decode()[:-1], self._value(part("right"), scope)
            value = self._combined(sign, self._value(part("left"), scope), value, node) if sign else value
            return self._assign(part("left"), value, scope)
        if kind == "update_expression":
            before, sign = self._value(part("argument"), scope), part("operator").text.decode()[0]
            after = self._assign(part("argument"), self._combined(sign, before, 1, node), scope)
            return after if text[0] in "+-" else before
        if kind == "call_expression":
            return self._call(node, scope)
        if kind in ("subscript_expression", "field_expression"):
            held = self._value(part("argument"), scope)
            if isinstance(held, list) or (isinstance(held, torch.Tensor) and part("indices") is not None):
                return held[self._place(node, scope)]
        raise self._refusal(node)

    def _place(self, node: Any, scope: Scope) -> int:
        """Of a subscript, or of ``x``, ``y`` or ``z``."""
        if (index := node.child_by_field_name("indices")) is not None:
            return int(self._numbers.settled(self._value(index.named_children[0], scope)))
        if _name(node) not in ("x", "y", "z"):
            raise self._refusal(node)
        return "xyz".index(_name(node))

    def _word(self, text: str, node: Any, scope: Scope) -> Any:
        """What a name stands for: a variable, a number that the file names, or one of torch's."""
        if text in scope:
            return scope[text]
        if text in self._code.numbers:
            return self._numbers.named(text, self._code.numbers[text])
        if text in _DTYPES or _NOTHING.fullmatch(text):
            return _DTYPES.get(text)
        constant = self._code.constant(text)
        if constant is None:
            raise self._refusal(node, f"names {text}, which it does not define")
        return self._value(constant, scope)

    def _size(self, kind: str, node: Any) -> int:
        if kind not in TYPES:
            raise self._refusal(node, f"asks for the size of {kind}")
        return int(getattr(torch, TYPES[kind][0]).itemsize)

    def _kind(self, text: str, scope: Mapping[str, Any]) -> str:
        """A type's name, where another stands for it."""
        text = " ".join(_QUALIFIERS.sub(" ", text.replace("*", " ")).split())
        found = str(scope.get(text, text))
        return _OWN.get(found.rpartition("::")[2], found)

    def _cast(self, kind: str, node: Any, scope: Scope) -> Any:
        value = self._value(node, scope)
        if isinstance(value, Pointer):
            return replace(value, kind=self._kind(kind, scope))
        return self._as(kind, value, node)

    def _combined(self, sign: str, one: Any, two: Any, node: Any) -> Any:
        if isinstance(one, Pointer) and sign in "+-" and isinstance(two, int):
            return replace(one, offset=_BINARY[sign](one.offset, two * self._size(one.kind, node)))
        if sign in ("==", "!=") and not isinstance(one, torch.Tensor):
            return _BINARY[sign](one, two)
        if not all(isinstance(v, int | float | torch.Tensor) for v in (one, two)):
            raise self._refusal(node)
        if sign in "/%" and isinstance(one, int) and isinstance(two, int):
            if one < 0 or two <= 0:
                raise self._refusal(node, "divides whole numbers that are not positive")
            return one // two if sign == "/" else one % two
        if type(one) is float:
            # Asked before a whole number on its right, it would forget where that comes from.
            one = traced_numbers.traced(one, traced_numbers.number_text(one), frozenset())
        if sign not in _BINARY:
            raise self._refusal(node)
        return _BINARY[sign](one, two)

    def _assign(self, target: Any, value: Any, scope: Scope) -> Any:
        if target.type == "identifier":
            name = target.text.decode()
            held_in = next((variables for variables in scope.maps if name in variables), None)
            if held_in is None:
                raise self._refusal(target)
            held_in[name] = self._as(scope.get(f":{name}", ""), value, target)
            return held_in[name]
        held = target.child_by_field_name("argument")
        held = self._value(held, scope) if held is not None else None
        if not isinstance(held, list):
            raise self._refusal(target)
        held[self._place(target, scope)] = value
        return value

    # -- calls -----------------------------------------------------------------------------------

    def _call(self, node: Any, scope: Scope) -> Any:
        function, parts = (node.child_by_field_name(f) for f in ("function", "arguments"))
        parts = parts.named_children
        text = function.text.decode()
        templates = (re.search(r"<(.*)>$", text.rpartition(".")[2], re.S) or ["", ""])[1]
        name = _name(function)
        if _CHECKS.fullmatch(name):  # its first argument may launch, or be a condition
            met = self._value(parts[0], scope) if parts else None
            if name.startswith(("TORCH_CHECK", "AT_ASSERT")) and not self._numbers.settled(met):
                raise self._refusal(node, "refuses the call")
            return None
        if _IGNORED.fullmatch(name):
            return None
        if name.startswith("AT_DISPATCH"):
            return self._dispatch(parts, scope, node)
        if name.endswith("_cast"):
            return self._cast(templates, parts[0], scope)
        given = self._values(parts, scope)
        sizes = next((n for n in node.named_children if n.type == "kernel_call_syntax"), None)
        if sizes is not None:
            asked = self._values(sizes.named_children, scope)
            return self._launch(name, templates, asked, given, scope, node)
        if function.type == "field_expression":
            held = self._value(function.child_by_field_name("argument"), scope)
            return self._method(held, name, self._kind(templates, scope), given, node)
        if name in self._code.hosts:
            return self.call(name, given)
        if name == "get" and isinstance(given[0], list | tuple):
            return given[0][int(templates)]
        if name == "dim3" or name in TYPES:
            return self._made(name, given, node)
        if name in ("TensorOptions", "dtype", "device"):
            return _Options(dtype=given[0]) if name == "dtype" else _Options()
        short = name if name in _MATHS else name.removesuffix("f")
        if short in _MATHS and not any(isinstance(v, torch.Tensor) for v in given):
            if short in ("ceil", "floor") and abs(given[0]) > EXACT:
                raise self._refusal(node, "rounds a number that floats do not hold")
            return _MATHS[short](*given)
        if re.match(r"(torch|at)::", text) and hasattr(torch, name):
            return _of_torch(getattr(torch, name), given)
        if (constant := self._code.constant(name, [n.text.decode() for n in parts])) is not None:
            return self._value(constant, scope)
        raise self._refusal(node, f"calls {name}, which is not followed")

    def _method(self, held: Any, name: str, asked: str, given: list[Any], node: Any) -> Any:
        if name in ("has_value", "defined", "value", "vec"):
            return held if name in ("value", "vec") else held is not None
        if name == "is_cuda" or held is None:  # of a stream or a device
            if name not in ("is_cuda", "stream", "type", "index"):
                raise self._refusal(node)
            return True if name == "is_cuda" else None
        if isinstance(held, _Options):
            return _Options(dtype=given[0]) if name == "dtype" else held
        if isinstance(held, list):
            ways: dict[str, Callable[[], Any]] = {
                "push_back": lambda: held.append(given[0]),
                "erase": lambda: held.pop(given[0]),
                "begin": lambda: 0,
                "insert": lambda: held.insert(*given),
                "end": lambda: len(held),
                "size": lambda: len(held),
                "back": lambda: held[-1],
                "empty": lambda: not held,
            }
        elif isinstance(held, torch.Tensor):
            ways = {
                **dict.fromkeys(("data_ptr", "data"), lambda: self._pointer(held, asked, node)),
                **dict.fromkeys(("scalar_type", "type", "dtype"), lambda: held.dtype),
                "device": lambda: None,
                "options": lambda: _Options(dtype=held.dtype),
                "sizes": lambda: list(held.size()),
                "strides": lambda: list(held.stride()),
                "get_device": lambda: None,
            }
            if name not in ways and hasattr(held, name):
                try:
                    return _of_torch(getattr(held, name), given)
                except TypeError as error:  # in C++ it takes other arguments
                    raise self._refusal(node, f"calls {name} with what torch's Python does not take") from error
        else:
            ways = {}
        if name not in ways:
            raise self._refusal(node, f"calls {name}, which is not followed")
        return ways[name]()

    def _pointer(self, tensor: torch.Tensor, asked: str, node: Any) -> Pointer | None:
        if 0 in tensor.shape:  # ``torch.Tensor()`` in place of a bias: its address is null
            return None
        own = str(tensor.dtype)[6:]
        if TYPES.get(asked, [own])[0] != own:
            raise self._refusal(node, f"takes a tensor of {own} as {asked}")
        return Pointer(tensor, asked or kind_of(tensor.dtype))

    def _dispatch(self, parts: Sequence[Any], scope: Scope, node: Any) -> None:
        """AT_DISPATCH: its function once, for the type that it is given."""
        body = next((n for p in parts for n in within(p, "lambda_expression")), None)
        plain = [p for p in parts if not [*within(p, "lambda_expression", "string_literal")]]
        asked = self._values(plain, scope)
        if body is None or not isinstance(asked[-1], torch.dtype):
            raise self._refusal(node)
        try:
            self._run(body.child_by_field_name("body"), scope.new_child({"scalar_t": kind_of(asked[-1])}))
        except _Returned:
            return

    def _launch(self, name: str, templates: str, sizes: list[Any], given: list[Any], scope: Scope, node: Any) -> None:
        kernel, trace = self._code.kernels.get(name), current()
        if kernel is None or trace is None or len(given) != len(kernel.parameters):
            raise self._refusal(node, f"launches {name} with arguments that its text does not take")
        kinds = [text.strip() for text in templates.split(",") if text.strip()]
        bound: dict[str, Any] = {}
        for own in kernel.templates:
            if kinds:
                word = self._kind(kinds.pop(0), scope)
                bound[own] = self._word(word, node, scope) if word in self._code.numbers else word
                continue
            pairs = zip(kernel.parameters, given, strict=True)  # as its pointers are given
            kinds = [v.kind for p, v in pairs if p.kind == own and isinstance(v, Pointer)]
            if not kinds:
                raise self._refusal(node, f"leaves the template {own} open")
            bound[own] = kinds[0]
        kept = kernel.parameters
        parameters = [p._replace(kind=self._kind(str(bound.get(p.kind, p.kind)), {})) for p in kept]
        pairs = zip(parameters, given, strict=True)
        arguments = [v if p.pointer else self._as(p.kind, v, node) for p, v in pairs]
        for one, value in zip(parameters, arguments, strict=True):
            types = {TYPES.get(k, [k])[0] for k in (one.kind, getattr(value, "kind", one.kind))} - {"void"}
            addressed = isinstance(value, Pointer) or value is None
            if one.pointer != addressed or len(types) > 1 or not (addressed or one.kind in TYPES):
                raise self._refusal(node, f"gives {name} something else than {one.kind} as {one.name}")
        grid, block = ([*(v if isinstance(v, list) else [v]), 1, 1][:3] for v in sizes[:2])
        shared = sizes[2] if sizes[2:] else 0
        made = Launch(name, [*bound.values()], parameters, kernel.text, grid, block, shared, arguments)
        trace.steps.append(made)
        for one, value in zip(parameters, arguments, strict=True):
            if isinstance(value, Pointer) and not one.const:
                torch.autograd.graph.increment_version(value.tensor)  # to torch it may be another value now


def _of_torch(function: Any, given: Sequence[Any]) -> Any:
    """A function of torch, whose options are told by their type."""
    options: dict[str, Any] = {}
    for value in (v for v in given if isinstance(v, _Options | torch.dtype)):
        options |= value if isinstance(value, _Options) else {"dtype": value}
    plain = [tuple(v) if type(v) is list else v for v in given if not isinstance(v, _Options | torch.dtype)]
    return function(*[v for v in plain if v is not None], **options)


def _name(node: Any) -> str:
    """The name that a declarator, a parameter, a field or a function has."""
    while node is not None and node.type not in _NAMES:
        ways = [node.child_by_field_name(f) for f in ("declarator", "field", "name")]
        node = next((n for n in ways if n is not None), next(iter(reversed(node.named_children)), None))
    return node.text.decode() if node is not None else ""


def kind_of(dtype: torch.dtype) -> str:
    """The type in C++ that a tensor's elements have."""
    name = str(dtype)[6:]
    kind = next((kind for kind, (own, _) in TYPES.items() if own == name), name)
    return "__half" if kind == "half" else kind
