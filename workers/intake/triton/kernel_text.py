"""The text of a user's kernel in the dialect, with the functions and constants that it uses.

Mechanical changes are made (underscores, type annotations, library functions under another name). Everything else stays
as it is, and the dialect refuses what it does not allow.
"""

import ast
import builtins
import functools
import inspect
import re
import textwrap
import types
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import triton
import triton.language as tl

from tilewright.fitness.dialect_names import ALL_BUILTINS, BUILTINS, DECLARATIONS, VALUE_ATTRIBUTES
from tilewright.workers.intake.source.load import MissingName
from tilewright.workers.intake.source.names import closure_of, line_map, object_of, placed_expression, public
from tilewright.workers.intake.source.traced_numbers import number_text, plain
from tilewright.workers.intake.triton import dead_branches, inline_assembly
from tilewright.workers.intake.triton.scalar_reads import Head, with_heads
from tilewright.workers.runners.triton.libdevice import OLD_HOMES, SAME, WRITTEN, whole_exponent

_RESERVED = ALL_BUILTINS | frozenset(("torch", "triton", "tl", "launch", "math")) | frozenset(DECLARATIONS)

_DROPPED = ("device_print", "static_print", "device_assert", "print", "assume")
"""What changes no answer. An assumption that does not hold, as of ``pid > 0``, is refused by the interpreter."""


@dataclass
class Text:
    """One function: its name in the module, its text, and the user's file and line of each of its lines."""

    name: str
    text: str
    file: str
    lines: dict[int, int] = field(default_factory=dict)


@dataclass
class Kernels:
    """The functions and constants that launched kernels reach. ``parameters``: by function, old name to new."""

    constants: dict[str, str] = field(default_factory=dict)
    functions: dict[str, Text] = field(default_factory=dict)
    parameters: dict[str, dict[str, str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    refusals: list[tuple[int, str]] = field(default_factory=list)
    given: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    """By the identity of a launched function: parameters that its launches give a constant."""
    _names: dict[int, str] = field(default_factory=dict)
    _spelt: dict[str, str] = field(default_factory=dict)
    _kept: list[Any] = field(default_factory=list)

    def add(self, kernel: Any) -> str:
        """Add a jitted function and what it uses; its name."""
        fn = kernel_function(kernel)
        if id(fn) in self._names:
            return self._names[id(fn)]
        name = self._free(fn.__name__)
        self._names[id(fn)] = name
        self._kept.append(fn)
        node, file = definition(fn)
        scope = closure_of(fn)
        node = dead_branches.cut(node, self.given.get(id(fn), {}), {**fn.__globals__, **scope})
        mapping: dict[str, str] = {}
        transform = _Transform(self, fn.__globals__, scope, node, mapping)
        self.parameters[name] = mapping
        made = transform.visit(node)
        made.name = name
        made.decorator_list = [ast.Name("triton.jit", ast.Load())]
        made.returns = None
        ast.fix_missing_locations(made)
        text = ast.unparse(made)
        self.functions[name] = Text(name, text, file, line_map(made, text))
        return name

    def module(self, launch: str, title: str = "", imports: str = "") -> str:
        """The text of a module of these functions and constants, with ``launch``."""
        constants = "".join(f"{n} = {t}\n" for n, t in self.constants.items())
        functions = "\n\n".join(t.text for t in self.functions.values())
        maths = "import math\n\n" if "math." in launch else ""
        return (
            f'"""{title}"""\n\n{maths}import torch\nimport triton\nimport triton.language as tl\n{imports}\n'
            f"SPACE = {{}}\n\n{constants}\n\n{functions}\n\n\n{launch}"
        )

    def keep_used(self, launch: str) -> None:
        """Leave out functions that neither ``launch`` nor any that it reaches names."""
        used: set[str] = set()
        left = [launch]
        while left:
            words = set(re.findall(r"\w+", left.pop())) - used
            used |= words
            left += [self.functions[name].text for name in words if name in self.functions]
        for name in [name for name in self.functions if name not in used]:
            del self.functions[name]

    def variant(self, name: str, heads: Mapping[str, Head]) -> str:
        """A function that was taken, making parameters of what is given for them; its name."""
        known = self.functions[name]
        again = next((n for n, t in self.functions.items() if t.text == with_heads(known.text, n, heads)), None)
        if again is not None:
            return again
        made = self._free(f"{name}_read")
        lines = {line + len(heads): of for line, of in known.lines.items()}
        self.functions[made] = Text(made, with_heads(known.text, made, heads), known.file, lines)
        return made

    def assembled(self, text: str, count: int) -> str:
        """A function that does what inline assembly does; its name, empty where the language cannot say it."""
        if text not in self._spelt:
            name = self._free("assembly")
            if not (function_text := inline_assembly.written(name, text, count)):
                return ""
            self._spelt[text] = name
            self.functions[name] = Text(name, function_text, "")
            self.notes.append(f"inline assembly is spelt out as {name}()")
        return self._spelt[text]

    def _free(self, wanted: str) -> str:
        name = public(wanted, "f")
        used_names = set(self.functions) | set(self.constants) | set(self._names.values()) | _RESERVED
        while name in used_names:
            name += "_k"
        return name

    def constant(self, name: str, text: str) -> str:
        """A module constant; its name."""
        new = public(name, "c")
        while new in _RESERVED or new in self.functions or self.constants.get(new, text) != text:
            new += "_c"
        self.constants[new] = text
        return new

    def spelt(self, name: str) -> str:
        """The name of a function of the device's library that was spelt out; empty where it was not."""
        return self._spelt.get(name, "")

    def written(self, name: str) -> str:
        """A function of the device's library, spelt out; its name."""
        if name not in self._spelt:
            text = WRITTEN[name]
            plain = text[4 : text.index("(")]
            called = self._spelt[name] = self._free(plain)
            text = f"@triton.jit\n{text.replace(plain, called, 1)}".rstrip()
            self.functions[called] = Text(called, text, "")
            self.notes.append(f"libdevice.{name} is spelt out as {called}()")
        return self._spelt[name]


_ASSEMBLY = ("asm", "constraints", "args", "dtype", "is_pure", "pack")
"""Parameters of ``tl.inline_asm_elementwise``."""


@functools.cache
def _text_of(fn: types.FunctionType) -> tuple[str, int, str]:
    """A function's text, first line and file: to find its end Python reads it token by token. Raises OSError."""
    lines, start = inspect.getsourcelines(fn)
    return textwrap.dedent("".join(lines)), start, inspect.getsourcefile(fn) or ""


def definition(fn: types.FunctionType) -> tuple[ast.FunctionDef, str]:
    """The syntax of a function with the lines of its file. Raises OSError."""
    text, start, file = _text_of(fn)
    tree = ast.parse(text)
    ast.increment_lineno(tree, start - 1)
    node = tree.body[0]
    assert isinstance(node, ast.FunctionDef)
    return node, file


class _Transform(ast.NodeTransformer):
    """Rewrites one kernel. ``mapping``: what its own names become."""

    def __init__(
        self,
        owner: Kernels,
        known: Mapping[str, Any],
        closure: Mapping[str, Any],
        node: ast.FunctionDef,
        mapping: dict[str, str],
    ) -> None:
        self._owner, self._known, self._closure, self._mapping = owner, known, closure, mapping
        arguments = [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
        self._arguments = frozenset(arguments)
        bound = [
            *arguments,
            *(n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)),
        ]
        self._local = set(bound)
        loops = (n.target for n in ast.walk(node) if isinstance(n, ast.For))
        self._counters = {target.id for target in loops if isinstance(target, ast.Name)}
        for name in bound:
            if name == "_" or name in mapping:
                continue
            new = name
            if new.startswith("_"):
                new = public(new, "u")
            if new in _RESERVED:
                new += "_"
            while new != name and (new in self._local or new in mapping.values()):
                new += "_"
            mapping[name] = new

    # -- names -----------------------------------------------------------------------------------

    def _object(self, node: ast.expr) -> tuple[bool, Any]:
        return object_of(node, self._local, (self._closure, self._known))

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id in self._local:
            return ast.copy_location(ast.Name(self._mapping.get(node.id, node.id), node.ctx), node)
        found, value = self._object(node)
        return self._expression(node, value, node.id) if found else node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        found, value = self._object(node)
        if found and not isinstance(value, types.ModuleType):
            return self._expression(node, value, node.attr)
        if node.attr == "element_ty" and isinstance(node.value, ast.Attribute) and node.value.attr == "type":
            node.value.attr = "dtype"
        if not found and ast.unparse(node.value) in OLD_HOMES and (node.attr in SAME or node.attr in WRITTEN):
            return placed_expression(self._library(node.attr, node.lineno), node)
        if node.attr == "value" and isinstance(node.value, ast.Name) and node.value.id in self._arguments:
            return self.visit(node.value)
        node.value = self.visit(node.value)
        return node

    def _expression(self, node: ast.expr, value: Any, name: str) -> ast.AST:
        text = self._text(value, name, getattr(node, "lineno", 0))
        if text is None:
            return node
        return placed_expression(text, node)

    def _text(self, value: Any, name: str, line: int) -> str | None:
        """How the module says a global value; None: as it is."""
        if getattr(builtins, name, None) is value and name in BUILTINS:
            return name
        if is_jitted(value):
            module = getattr(kernel_function(value), "__module__", "")
            if module.startswith("triton.language"):
                return _language(value, name)
            return self._owner.add(value)
        if isinstance(value, types.ModuleType):
            return {"triton": "triton", "triton.language": "tl", "math": "math"}.get(value.__name__)
        module = getattr(value, "__module__", None) or ""
        if module.endswith("libdevice"):
            return self._library(getattr(value, "__name__", name), line)
        text = _language(value, name)
        if text is not None:
            return text
        if value is triton.cdiv or (name in ("cdiv", "next_power_of_2") and callable(value)):
            return "tl.cdiv" if name == "cdiv" else f"triton.{name}"
        if isinstance(value, tl.constexpr):
            return self._constant(name, value.value, line)
        if isinstance(value, bool | int | float | str | tl.dtype) or value is None:
            return self._constant(name, value, line)
        if isinstance(value, MissingName):
            self._owner.refusals.append((line, value.why))
            return "tl.abs"  # one reason is enough
        return None

    def _constant(self, name: str, value: Any, line: int) -> str | None:
        value = plain(value)
        if isinstance(value, tl.dtype):
            return f"tl.{dtype_name(value)}"
        if value is None:
            return "None"
        if not isinstance(value, bool | int | float | str):
            self._owner.refusals.append((line, f"the constant {name} is a {type(value).__name__}"))
            return None
        return self._owner.constant(name, f"tl.constexpr({number_text(value)})")

    def _library(self, name: str, line: int) -> str:
        if name in SAME:
            return SAME[name]
        if name in WRITTEN:
            return self._owner.written(name)
        self._owner.refusals.append((line, f"the device library's function {name}"))
        return "tl.abs"  # one reason is enough

    # -- statements ------------------------------------------------------------------------------

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
            text = "" if argument.annotation is None else ast.unparse(argument.annotation)
            argument.annotation = ast.parse("tl.constexpr", mode="eval").body if "constexpr" in text else None
            argument.arg = self._mapping.get(argument.arg, argument.arg)
        own, self._local = self._local, set()  # a default is of the names around the function
        node.args.defaults = [self.visit(default) for default in node.args.defaults]
        self._local = own
        body: list[ast.stmt] = []
        for place, statement in enumerate(node.body):
            if place == 0 and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                continue  # its docstring stays in the user's file
            made = self.visit(statement)
            body += made if isinstance(made, list) else [] if made is None else [made]
        node.body = body or [ast.Pass()]
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        if isinstance(node.value, ast.Constant):
            return None
        if isinstance(node.value, ast.Call):
            called = ast.unparse(node.value.func).rpartition(".")[2]
            if called in _DROPPED:
                kept = self._owner.left_out if "assert" in called else self._owner.notes
                kept.append(f"line {node.lineno}: {called} is dropped")
                return None
            if called == "static_assert":  # its message may be put together
                del node.value.args[1:]
                node.value.keywords = [k for k in node.value.keywords if k.arg == "cond"]
        node.value = self.visit(node.value)
        return node

    def visit_Assert(self, node: ast.Assert) -> ast.AST | None:
        self._owner.left_out.append(f"line {node.lineno}: an assertion within a kernel is dropped")
        return None

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        text = ast.unparse(node.annotation)
        if "constexpr" in text:
            node.annotation = ast.parse("tl.constexpr", mode="eval").body
            node.target = self.visit(node.target)
            node.value = None if node.value is None else self.visit(node.value)
            return node
        assert node.value is not None
        made = ast.Assign([self.visit(node.target)], self.visit(node.value))
        return ast.copy_location(made, node)

    def visit_Assign(self, node: ast.Assign) -> ast.AST | list[ast.stmt]:
        """``a, b = x, y`` as a statement each, a name behind what reads it: rules follow a name to its one value."""
        self.generic_visit(node)
        target, value = node.targets[0], node.value
        if not (isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)) or len(node.targets) > 1:
            return node
        left = {name.id: one for name, one in zip(target.elts, value.elts, strict=False) if isinstance(name, ast.Name)}
        if not len(left) == len(target.elts) == len(value.elts):
            return node
        made: list[ast.stmt] = []
        while left:
            read = {m: {x.id for x in ast.walk(v) if isinstance(x, ast.Name)} for m, v in left.items()}
            free = next((n for n in left if not any(n in read[m] for m in left if m != n)), None)
            if free is None:
                return node
            made.append(ast.copy_location(ast.Assign([ast.Name(free, ast.Store())], left.pop(free)), node))
        return made

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        if isinstance(node, ast.If | ast.For | ast.While) and not node.body:
            node.body = [ast.copy_location(ast.Pass(), node)]
        return node

    def _assembly(self, node: ast.Call) -> ast.AST:
        """Inline assembly as a function of the language; refused, once, where it is not one."""
        given = dict(zip(_ASSEMBLY, node.args, strict=False))
        given.update({keyword.arg: keyword.value for keyword in node.keywords if keyword.arg})

        def value(name: str) -> Any:
            part = given.get(name)
            found = part.value if isinstance(part, ast.Constant) else part and self._object(part)[1]
            return getattr(found, "value", found)

        text, tensors = value("asm"), getattr(given.get("args"), "elts", [])
        plain = isinstance(text, str) and value("dtype") is tl.float32 and value("pack") == 1
        name = self._owner.assembled(str(text), len(tensors)) if plain else ""
        if not name:
            self._owner.refusals.append((node.lineno, "inline assembly"))
            return ast.copy_location(ast.Constant(0), node)  # one reason is enough
        return ast.copy_location(ast.Call(ast.Name(name, ast.Load()), [self.visit(t) for t in tensors], []), node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        found, value = self._object(node.func)
        if found and value is tl.inline_asm_elementwise:
            return self._assembly(node)
        if not found:
            whole = bool(node.args) and "int" in ast.unparse(node.args[0])
            _by_own_name(node, self._counters | (self._arguments if whole else frozenset()))
        self.generic_visit(node)
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name == "range":
            node.keywords.clear()  # as the compiler does: what is said to it holds for ``tl.range`` alone
        if name and name == self._owner.spelt("pow") and (exponent := whole_exponent(node)):
            node.func = ast.copy_location(ast.Name(self._owner.written(f"pow{exponent}"), ast.Load()), node)
            del node.args[-1]
        if name in self._owner.parameters:
            renamed = self._owner.parameters[name]
            for keyword in node.keywords:
                keyword.arg = renamed.get(keyword.arg, keyword.arg) if keyword.arg else None
        if ast.unparse(node.func) == "tl.constexpr" and len(node.args) == 1:
            return node.args[0]
        return node


def _by_own_name(node: ast.Call, counters: Collection[str]) -> None:
    """A function of the language that is called as a tensor's method, ``x.log()``, by its own name; so is ``to`` of a
    loop's counter, or of an argument that may be one: a tensor to the compiler, and none to the interpreter."""
    func = node.func
    if not isinstance(func, ast.Attribute):
        return
    counted = func.attr == "to" and any(isinstance(n, ast.Name) and n.id in counters for n in ast.walk(func.value))
    name = "cast" if counted and isinstance(func.value, ast.Name | ast.BinOp) else func.attr
    if name in VALUE_ATTRIBUTES or not (hasattr(tl.tensor, func.attr) and callable(getattr(tl, name, None))):
        return
    node.args.insert(0, func.value)
    language = ast.copy_location(ast.Name("tl", ast.Load()), node)
    node.func = ast.copy_location(ast.Attribute(language, name, ast.Load()), node)


def kernel_function(value: Any) -> Any:
    """The Python function below a kernel's decorators."""
    while hasattr(value, "fn"):
        value = value.fn
    return value


def is_jitted(value: Any) -> bool:
    return hasattr(value, "rewriter") or type(value).__name__ in ("JITFunction", "Autotuner", "Heuristics")


def dtype_name(value: tl.dtype) -> str:
    return next(n for n in dir(tl) if isinstance(getattr(tl, n), tl.dtype) and getattr(tl, n) == value)


def _language(value: Any, name: str) -> str | None:
    """A function or dtype of Triton's language by its place there."""
    if getattr(tl, name, None) is value:
        return f"tl.{name}"
    if getattr(tl.math, name, None) is value:
        return f"tl.{name}" if hasattr(tl, name) else f"tl.math.{name}"
    found = next((n for n in dir(tl) if not n.startswith("_") and getattr(tl, n) is value), None)
    return None if found is None or isinstance(value, bool | int | float | str) or value is None else f"tl.{found}"
