"""The kernel dialect, checked on the syntax tree before anything runs: the first wall.

A module holds a docstring, imports from an allowlist, constants and functions. It can name only what it defines,
what it imports and a few builtins; it can reach only allowed attributes; nothing it can say starts with an
underscore. So it cannot open a file, look at its caller, keep state between calls, or find the harness. The
tables are in ``fitness.dialect_names``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from tilewright.fitness import dialect_names as names

MAX_SOURCE_BYTES = 64 << 10
MAX_NODES = 20_000
MAX_DEPTH = 60
MAX_STRING = 4096
ENTRIES = {"build": 1, "launch": 2}
"""Entry function to its number of parameters."""

_CONTROL = re.compile(r"(?!\r\n)[\x00-\x08\x0b-\x1f\x7f\x85\u2028\u2029]")
_CODING = re.compile(r"[ \t]*#.*?coding[:=][ \t]*([-\w.]+)")
_DEF = re.compile(r"\s*(async\s+)?def\b")

_FORBIDDEN: dict[type[ast.AST], str] = {
    ast.Global: "a global statement",
    ast.Nonlocal: "a nonlocal statement",
    ast.ClassDef: "a class",
    ast.AsyncFunctionDef: "an async function",
    ast.AsyncFor: "an async loop",
    ast.AsyncWith: "an async with",
    ast.Await: "await",
    ast.Yield: "a generator",
    ast.YieldFrom: "a generator",
    ast.With: "a with statement",
    ast.Try: "a try statement",
    ast.TryStar: "a try statement",
    ast.Delete: "a del statement",
    ast.Match: "a match statement",
}


@dataclass(frozen=True)
class Violation:
    """One reason why a source is not of the dialect. ``line`` is 1-based, 0 for the whole source."""

    line: int
    what: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.what}" if self.line else self.what


def check(source: str, *, entry: str = "build") -> list[Violation]:
    """All violations in the order of lines; an empty list means the source is of the dialect.

    ``entry`` is the function the runner will call: ``build`` (Pallas) or ``launch`` (Triton, Gluon).
    """
    size = len(source.encode(errors="surrogatepass"))
    if size > MAX_SOURCE_BYTES:
        return [Violation(0, f"the source has {size} bytes, at most {MAX_SOURCE_BYTES} are allowed")]
    try:
        tree = ast.parse(source)
        nodes = _size(tree)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 0
        return [Violation(line, f"not Python: {getattr(error, 'msg', None) or error}")]
    except (RecursionError, MemoryError):
        return [Violation(0, f"the source nests deeper than {MAX_DEPTH} levels")]
    if nodes > MAX_NODES:
        return [Violation(0, f"the source has {nodes} syntax nodes, at most {MAX_NODES} are allowed")]
    checker = _Checker(tree, products=entry == "build")
    violations = [*_readings(source, tree), *checker.run(), *_entry(tree, entry)]
    return sorted(set(violations), key=lambda violation: (violation.line, violation.what))


def _readings(source: str, tree: ast.AST) -> Iterator[Violation]:
    """Where others might read another program than the tree: Python from a file, Triton from a function's lines.

    A coding declaration has Python read a file's comments as code. Triton takes a kernel to begin at the first line
    of its text that starts with ``def``, be that in a string.
    """
    if (control := _CONTROL.search(source)) is not None:
        yield Violation(source.count("\n", 0, control.start()) + 1, "a control character")
    lines = source.split("\n")
    for number, line in enumerate(lines[:2], 1):
        coding = _CODING.match(line)
        if coding is not None and coding[1].lower() not in ("utf-8", "utf8"):
            yield Violation(number, f"the source coding {coding[1]}")
    functions = {node.lineno for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    for number, line in enumerate(lines, 1):
        if _DEF.match(line) and number not in functions:
            yield Violation(number, "a line that looks like a function and is none")


def _size(tree: ast.AST) -> int:
    """Number of nodes. Raises RecursionError when the tree is too deep."""
    count, level = 0, [tree]
    for _ in range(MAX_DEPTH):
        count += len(level)
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        if not level or count > MAX_NODES:
            return count + len(level)
    raise RecursionError


def _too_long(value: object) -> bool:
    return isinstance(value, bytes) or (isinstance(value, str) and len(value) > MAX_STRING)


def _entry(tree: ast.Module, entry: str) -> Iterator[Violation]:
    functions = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == entry]
    wanted = ENTRIES[entry]
    if len(functions) != 1:
        yield Violation(0, f"the module defines {len(functions)} functions called {entry}, it needs one")
        return
    arguments = functions[0].args
    extra = [
        *arguments.posonlyargs,
        *arguments.kwonlyargs,
        *filter(None, [arguments.vararg, arguments.kwarg]),
    ]
    if len(arguments.args) != wanted or extra or functions[0].decorator_list:
        yield Violation(
            functions[0].lineno, f"{entry} takes exactly {wanted} plain parameter(s), undecorated"
        )


class _Checker:
    """Walks one module. ``_aliases`` maps a name to the dotted path it was imported as."""

    def __init__(self, tree: ast.Module, *, products: bool) -> None:
        self._tree = tree
        self._products = products
        """Whether ``@`` may stand outside a jitted function, where torch would compute it."""
        self._called: set[int] = set()
        self._aliases: dict[str, str] = {}
        self._found: list[Violation] = []
        self._bound: set[str] = set()

    def run(self) -> list[Violation]:
        for statement in self._tree.body:
            self._top_level(statement)
        self._collect_bindings()
        for statement in self._tree.body:
            if not isinstance(statement, ast.Import | ast.ImportFrom):
                self._node(statement)
        return self._found

    def _say(self, node: ast.AST, what: str) -> None:
        self._found.append(Violation(getattr(node, "lineno", 0), what))

    # ------------------------------------------------------------------ module level

    def _top_level(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Import | ast.ImportFrom):
            self._import(node)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            self._constant(node)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            if not isinstance(node.value.value, str):
                self._say(node, "a statement without effect")
        elif not isinstance(node, ast.FunctionDef):
            self._say(node, "only imports, constants and functions may stand at module level")

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        if isinstance(node, ast.Import):
            for item in node.names:
                if item.name not in names.MODULES:
                    self._say(node, f"import of {item.name}")
                elif item.asname is None and "." in item.name:
                    self._alias(node, item.name.split(".")[0], item.name.split(".")[0])
                else:
                    self._alias(node, item.asname or item.name, item.name)
            return
        if node.level or node.module not in names.MODULES:
            self._say(node, f"import from {'.' * node.level}{node.module or ''}")
            return
        for item in node.names:
            path = f"{node.module}.{item.name}"
            if item.name == "*" or not self._allowed(path):
                self._say(node, f"import of {path}")
            else:
                self._alias(node, item.asname or item.name, path)

    def _alias(self, node: ast.AST, name: str, path: str) -> None:
        if self._aliases.get(name, path) != path:
            self._say(node, f"the name {name} is imported twice")
        self._aliases[name] = path
        self._identifier(node, name)

    def _constant(self, node: ast.Assign | ast.AnnAssign) -> None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if any(not isinstance(target, ast.Name) for target in targets) or node.value is None:
            self._say(node, "module level assigns constants to plain names only")
            return
        declared = any(isinstance(t, ast.Name) and t.id in names.DECLARATIONS for t in targets)
        if declared:
            try:
                ast.literal_eval(node.value)
            except (ValueError, TypeError, MemoryError, RecursionError):
                self._say(node, "SPACE, DEFAULTS and CONSTRAINTS are literals")
            return
        for part in ast.walk(node.value):
            if isinstance(part, ast.Call) and self._path(part.func) == "triton.language.constexpr":
                continue
            if isinstance(
                part,
                ast.Call | ast.Lambda | ast.List | ast.Dict | ast.Set | ast.ListComp | ast.SetComp
                | ast.DictComp | ast.GeneratorExp | ast.NamedExpr | ast.Subscript | ast.JoinedStr,
            ):  # fmt: skip
                self._say(node, "a module-level constant is a number, a string, a dtype or a tuple of them")
                return

    def _collect_bindings(self) -> None:
        for node in ast.walk(self._tree):
            if isinstance(node, ast.FunctionDef):
                self._bind(node, node.name)
            elif isinstance(node, ast.arg):
                self._bind(node, node.arg)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                self._bind(node, node.id)

    def _bind(self, node: ast.AST, name: str) -> None:
        self._bound.add(name)
        if name in self._aliases:
            self._say(node, f"the imported name {name} is bound again")
        if name in names.BUILTINS:
            self._say(node, f"the builtin name {name} is bound again")

    # ------------------------------------------------------------------ everywhere

    def _node(self, node: ast.AST) -> None:
        kind = type(node)
        if kind in _FORBIDDEN:
            self._say(node, _FORBIDDEN[kind])
        elif isinstance(node, ast.Import | ast.ImportFrom):
            self._say(node, "an import inside a function")
        elif isinstance(node, ast.FunctionDef):
            self._function(node)
        elif isinstance(node, ast.arg):
            self._identifier(node, node.arg)
        elif isinstance(node, ast.keyword):
            self._keyword(node)
        elif isinstance(node, ast.Call):
            self._call(node)
        elif isinstance(node, ast.BinOp | ast.AugAssign):
            if isinstance(node.op, ast.MatMult) and not self._products:
                self._say(node, "a matrix product outside a kernel")
        elif isinstance(node, ast.Name):
            self._name(node)
        elif isinstance(node, ast.Attribute):
            if self._attribute(node):
                return
        elif isinstance(node, ast.Constant) and _too_long(node.value):
            self._say(node, f"bytes or a string of more than {MAX_STRING} characters")
        for child in ast.iter_child_nodes(node):
            self._node(child)

    def _identifier(self, node: ast.AST, name: str) -> None:
        if name.startswith("_"):
            self._say(node, f"the name {name} starts with an underscore")

    def _keyword(self, node: ast.keyword) -> None:
        if node.arg is None:
            return
        self._identifier(node, node.arg)
        if node.arg in names.REFUSED_KEYWORDS:
            self._say(node.value, f"the keyword argument {node.arg}")
        value = node.value.value if isinstance(node.value, ast.Constant) else None
        if node.arg == "name" and not (isinstance(value, str) and value.isidentifier() and value.isascii()):
            # it ends up in the compiler's dumps, where it must not look like anything else
            self._say(node.value, "a name that is not a plain identifier in quotes")

    def _call(self, node: ast.Call) -> None:
        """Keywords must be readable here: refused ones could hide in a mapping or in a position."""
        path = self._path(node.func)
        if path not in names.MAY_UNPACK and any(keyword.arg is None for keyword in node.keywords):
            self._say(node, "** in a call of anything but BlockSpec")
        if path in names.KEYWORDS_ONLY:
            self._called.add(id(node.func))
            if node.args:
                self._say(node, f"{path} with positional arguments")

    def _function(self, node: ast.FunctionDef) -> None:
        self._identifier(node, node.name)
        for default in (*node.args.defaults, *filter(None, node.args.kw_defaults)):
            plain = default.operand if isinstance(default, ast.UnaryOp) else default
            if not isinstance(plain, ast.Constant) and not self._path(plain):
                self._say(default, f"a default argument of {node.name} that is not a constant")
        for decorator in node.decorator_list:
            called = isinstance(decorator, ast.Call)
            path = self._path(decorator.func if isinstance(decorator, ast.Call) else decorator)
            if path not in (names.CALLED_DECORATORS if called else names.DECORATORS):
                self._say(decorator, f"the decorator {ast.unparse(decorator)[:60]}")

    def _name(self, node: ast.Name) -> None:
        if node.id == "_" and isinstance(node.ctx, ast.Store):
            return
        self._identifier(node, node.id)
        if not isinstance(node.ctx, ast.Load):
            return
        if node.id in names.DECLARATIONS:
            self._say(node, f"{node.id} is for the search; a kernel reads its params")
        elif node.id in self._aliases:
            if self._aliases[node.id] in names.MODULES:
                self._say(node, f"the module {node.id} used as a value")
            self._keywords_only(node, self._aliases[node.id])
        elif node.id not in self._bound and node.id not in names.BUILTINS:
            self._say(node, f"the name {node.id} is not defined here")

    def _attribute(self, node: ast.Attribute) -> bool:
        """True when the chain is a module path and needs no further look."""
        path = self._path(node)
        if path is None:
            self._identifier(node, node.attr)
            if not isinstance(node.ctx, ast.Load):
                self._say(node, f"assignment to the attribute {node.attr}")
            elif node.attr not in names.VALUE_ATTRIBUTES:
                self._say(node, f"the attribute {node.attr}")
            return False
        if not isinstance(node.ctx, ast.Load):
            self._say(node, f"assignment to {path}")
        elif path in names.MODULES:
            self._say(node, f"the module {path} used as a value")
        elif not self._allowed(path):
            self._say(node, f"the name {path}")
        self._keywords_only(node, path)
        return True

    def _keywords_only(self, node: ast.AST, path: str) -> None:
        if path in names.KEYWORDS_ONLY and id(node) not in self._called:
            self._say(node, f"{path} used as a value")

    def _path(self, node: ast.AST) -> str | None:
        """The dotted path that a name or attribute chain stands for, if it starts at an import."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id not in self._aliases:
            return None
        return ".".join([self._aliases[node.id], *reversed(parts)])

    def _allowed(self, path: str) -> bool:
        """Whether a path ends in an allowed name of an allowed module, or in plain members of one (``a.b.c``)."""
        parts = path.split(".")
        if any(part.startswith("_") or part in names.REFUSED for part in parts[1:]):
            return path == "__future__.annotations"
        for cut in range(len(parts) - 1, 0, -1):
            module, rest = ".".join(parts[:cut]), parts[cut:]
            if module not in names.MODULES:
                continue
            allowed = names.MODULES[module]
            if rest[0] not in allowed:
                return False
            # members of a value, such as an enumeration's items or a dtype's size
            return all(part in names.VALUE_ATTRIBUTES or part.isupper() for part in rest[1:])
        return False
