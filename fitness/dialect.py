"""The kernel dialect, checked on the syntax tree before anything runs: the first wall.

A module holds a docstring, imports from an allowlist, constants and functions. It can name only what its scopes define
(``Scopes``), what it imports and a few builtins; it can reach only allowed attributes and say only
allowed keywords; nothing it can say starts with an underscore. What runs at import makes nothing that could be changed
later. So it cannot open a file, look at its caller, keep state between calls, or find the harness. The tables are in
``fitness.dialect_names``. It is the first wall and not the last: see ``docs/security.md``.
"""

import ast
import re
import symtable
from collections.abc import Iterator
from dataclasses import dataclass

from tilewright.fitness import dialect_names as names

MAX_SOURCE_BYTES = 64 << 10
MAX_NODES = 20_000
MAX_DEPTH = 60
MAX_STRING = 4096
ENTRIES = {"build": 1, "launch": 2}
"""Entry function to its number of parameters."""

MAX_BITS = 256
_CONTROL = re.compile(r"(?!\r\n)[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""Among them those that show a line's characters in another order than Python reads them."""
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
"""What is refused in words of its own; whatever is not among ``_KNOWN`` is refused by its name."""

_KNOWN_NAMES = (
    "Expr Assign AnnAssign AugAssign FunctionDef Return If For While Break Continue Pass Assert Raise Import "
    "ImportFrom alias arguments arg keyword Name Constant Attribute Call Subscript Slice Starred Tuple List Dict "
    "Set ListComp SetComp DictComp GeneratorExp comprehension Lambda IfExp NamedExpr BoolOp BinOp UnaryOp Compare "
    "JoinedStr FormattedValue expr_context operator unaryop boolop cmpop"
)
_KNOWN = tuple(vars(ast)[name] for name in _KNOWN_NAMES.split())


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
    try:
        held = read_scopes(source)
    except SyntaxError as error:
        return [Violation(error.lineno or 0, f"not Python: {error.msg}")]
    checker = _Checker(tree, held, products=entry == "build")
    if (code := device_code(tree)) is not None:
        if entry != "launch":
            return [Violation(code.lineno, "CUDA C++ on a target that it is not compiled for")]
        checker.device_code = code
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


def is_cuda(source: str) -> bool:
    """Whether a source of the dialect is a module in CUDA C++."""
    return f"\n{names.DEVICE_CODE} = " in f"\n{source}"


def device_code(tree: ast.Module) -> ast.Constant | None:
    """The text of a module in CUDA C++, which Python never runs: the constant ``CUDA``."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            target = node.targets[0]
            if isinstance(target, ast.Name) and target.id == names.DEVICE_CODE:
                return node.value if isinstance(node.value.value, str) else None
    return None


def _too_long(value: object) -> bool:
    if isinstance(value, int):
        return value.bit_length() > MAX_BITS
    return isinstance(value, bytes) or (isinstance(value, str) and len(value) > MAX_STRING)


def _entry(tree: ast.Module, entry: str) -> Iterator[Violation]:
    functions = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == entry]
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == entry for target in targets):
            yield Violation(node.lineno, f"{entry} is bound again")
    if len(functions) != 1:
        yield Violation(0, f"the module defines {len(functions)} functions called {entry}, it needs one")
        return
    arguments = functions[0].args
    extra = [*arguments.posonlyargs, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    if len(arguments.args) != ENTRIES[entry] or any(extra) or functions[0].decorator_list:
        what = f"{entry} takes exactly {ENTRIES[entry]} plain parameter(s), undecorated"
        yield Violation(functions[0].lineno, what)


class _Checker:
    """Walks one module. ``_aliases`` maps a name to the dotted path it was imported as."""

    def __init__(self, tree: ast.Module, held: "Scopes", *, products: bool) -> None:
        self._tree = tree
        self._held = held
        self._products = products
        """Whether ``@`` may stand outside a jitted function, where torch would compute it."""
        self.device_code: ast.Constant | None = None
        """Of a module in CUDA C++, whose Python imports numbers alone."""
        self._called: set[int] = set()
        self._spoken = _spoken(tree) if not products else None
        """Where values may become text; None: anywhere."""
        self._aliases: dict[str, str] = {}
        self._found: list[Violation] = []
        self._functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}

    def run(self) -> list[Violation]:
        for statement in self._tree.body:
            self._top_level(statement)
        self._scopes()
        for statement in self._tree.body:
            if not isinstance(statement, ast.Import | ast.ImportFrom):
                self._node(statement)
            if isinstance(statement, ast.FunctionDef):
                self._made_at_import(statement)
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
        if self.device_code is not None:
            wanted = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            for name in wanted:
                if name not in names.BESIDE_DEVICE_CODE:
                    self._say(node, f"import of {name} beside CUDA C++")
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
                ast.Call
                | ast.Lambda
                | ast.List
                | ast.Dict
                | ast.Set
                | ast.ListComp
                | ast.SetComp
                | ast.DictComp
                | ast.GeneratorExp
                | ast.NamedExpr
                | ast.Subscript
                | ast.JoinedStr,
            ):
                self._say(node, "a module-level constant is a number, a string, a dtype or a tuple of them")
                return

    def _scopes(self) -> None:
        """No builtin is bound, no import bound again, and every name is one of a scope it can be seen from."""
        for name, line in self._held.bound:
            if name in self._aliases and (line, name) not in self._held.imports:
                self._found.append(Violation(line, f"the imported name {name} is bound again"))
            if name in names.ALL_BUILTINS:
                self._found.append(Violation(line, f"the builtin name {name} is bound again"))
        known = self._held.module | names.BUILTINS | set(names.DECLARATIONS)
        for name, line in self._held.free:
            if name not in known and not name.startswith("_"):
                self._found.append(Violation(line, f"the name {name} is not defined here"))

    # ------------------------------------------------------------------ at import

    def _made_at_import(self, function: ast.FunctionDef) -> None:
        """Decorators, defaults and annotations of a function of the module run once: all they make is immutable."""
        arguments = function.args
        for default in (*arguments.defaults, *filter(None, arguments.kw_defaults)):
            if not self._immutable(default):
                self._say(default, f"a default argument of {function.name} that is not a constant")
        for decorator in function.decorator_list:
            if not isinstance(decorator, ast.Call):
                continue
            path = self._path(decorator.func) or ""
            for value in (*decorator.args, *(keyword.value for keyword in decorator.keywords)):
                listed = isinstance(value, ast.List) and path in names.DECORATOR_KEYWORDS
                parts = value.elts if isinstance(value, ast.List) and listed else [value]
                if not all(map(self._immutable, parts)):
                    self._say(value, f"an argument of the decorator {path} that is neither constant nor known")

    def _immutable(self, node: ast.AST) -> bool:
        """Whether it is a constant, a name of the module or of an import, or a tuple of these."""
        if isinstance(node, ast.UnaryOp | ast.Constant):
            return isinstance(node, ast.Constant) or isinstance(node.operand, ast.Constant)
        if isinstance(node, ast.Tuple):
            return all(map(self._immutable, node.elts))
        if isinstance(node, ast.Name):
            return node.id in self._held.module or node.id in names.BUILTINS
        return self._path(node) is not None

    def _annotation(self, node: ast.AST | None) -> None:
        """An annotation runs: names and constants, in brackets or joined by ``|``."""
        if node is not None and not self._annotates(node):
            self._say(node, f"the annotation {ast.unparse(node)[:60]}")

    def _annotates(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Subscript):
            return self._annotates(node.value) and self._annotates(node.slice)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            return self._annotates(node.left) and self._annotates(node.right)
        if isinstance(node, ast.Tuple):
            return all(map(self._annotates, node.elts))
        return self._immutable(node)

    # ------------------------------------------------------------------ everywhere

    def _node(self, node: ast.AST) -> None:
        kind = type(node)
        if kind in _FORBIDDEN:
            self._say(node, _FORBIDDEN[kind])
        elif not isinstance(node, _KNOWN):
            self._say(node, f"the syntax {kind.__name__}")
        elif isinstance(node, ast.Import | ast.ImportFrom):
            self._say(node, "an import inside a function")
        elif isinstance(node, ast.FunctionDef):
            self._function(node)
        elif isinstance(node, ast.Lambda):
            self._defaults(node, "a lambda")
        elif isinstance(node, ast.arg):
            if node.arg != "_":
                self._identifier(node, node.arg)
            self._annotation(node.annotation)
        elif isinstance(node, ast.AnnAssign):
            self._annotation(node.annotation)
        elif isinstance(node, ast.Call):
            self._call(node)
        elif self._makes_text(node):
            self._say(node, "text made of values: str, an f-string or a format")
        elif isinstance(node, ast.BinOp | ast.AugAssign):
            if isinstance(node.op, ast.MatMult) and not self._products:
                self._say(node, "a matrix product outside a kernel")
        elif isinstance(node, ast.Name):
            self._name(node)
        elif isinstance(node, ast.Attribute):
            if self._attribute(node):
                return
        elif node is self.device_code:
            return
        elif isinstance(node, ast.Constant) and _too_long(node.value):
            what = f"a string of more than {MAX_STRING} characters, or a number of more than {MAX_BITS} bits"
            self._say(node, f"bytes, {what}")
        for child in ast.iter_child_nodes(node):
            self._node(child)

    def _makes_text(self, node: ast.AST) -> bool:
        """The text of a tensor holds its values, and torch writes it outside the guard on ``launch``; that of a kernel
        tells who runs it. A text with ``%`` may become a format wherever it goes."""
        if self._spoken is None or id(node) in self._spoken:
            return False
        if isinstance(node, ast.Constant):
            return isinstance(node.value, str) and "%" in node.value and node is not self.device_code
        return isinstance(node, ast.FormattedValue) or (isinstance(node, ast.Name) and node.id == "str")

    def _identifier(self, node: ast.AST, name: str) -> None:
        if name.startswith("_"):
            self._say(node, f"the name {name} starts with an underscore")

    def _call(self, node: ast.Call) -> None:
        """Keywords must be readable here: refused ones could hide in a mapping or in a position."""
        path = self._path(node.func)
        if path not in names.MAY_UNPACK and any(keyword.arg is None for keyword in node.keywords):
            self._say(node, "** in a call of anything but BlockSpec")
        if path in names.KEYWORDS_ONLY:
            self._called.add(id(node.func))
            if node.args:
                self._say(node, f"{path} with positional arguments")
        if isinstance(node.func, ast.Name) and node.func.id == "dict":
            allowed: frozenset[str] | None = None
        elif path is not None and path != "functools.partial":
            allowed = names.DECORATOR_KEYWORDS.get(path, names.KEYWORDS)
        else:
            allowed = names.KEYWORDS | names.LAUNCH_OPTIONS | (self._held.parameters - names.RESERVED_KEYWORDS)
        for keyword in node.keywords:
            self._keyword(keyword, allowed)

    def _keyword(self, node: ast.keyword, allowed: frozenset[str] | None) -> None:
        if node.arg is None:
            return
        self._identifier(node, node.arg)
        if allowed is not None and node.arg not in allowed:
            self._say(node.value, f"the keyword argument {node.arg}")
        value = node.value.value if isinstance(node.value, ast.Constant) else None
        if node.arg == "name" and not (isinstance(value, str) and value.isidentifier() and value.isascii()):
            # it ends up in the compiler's dumps, where it must not look like anything else
            self._say(node.value, "a name that is not a plain identifier in quotes")

    def _defaults(self, node: ast.FunctionDef | ast.Lambda, name: str) -> None:
        for default in (*node.args.defaults, *filter(None, node.args.kw_defaults)):
            if not (self._immutable(default) or isinstance(default, ast.Name)):
                self._say(default, f"a default argument of {name} that is not a constant")

    def _function(self, node: ast.FunctionDef) -> None:
        self._identifier(node, node.name)
        self._defaults(node, node.name)
        self._annotation(node.returns)
        if getattr(node, "type_params", None):
            self._say(node, f"type parameters of {node.name}")
        for decorator in node.decorator_list:
            called = isinstance(decorator, ast.Call)
            path = self._path(decorator.func if isinstance(decorator, ast.Call) else decorator)
            allowed = path in (names.CALLED_DECORATORS if called else names.DECORATORS)
            if allowed and path == "functools.partial" and isinstance(decorator, ast.Call):
                allowed = bool(decorator.args) and self._path(decorator.args[0]) in names.PARTIAL_DECORATORS
            if not allowed:
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


def _spoken(tree: ast.AST) -> frozenset[int]:
    """Nodes in messages of errors, which end a launch, in annotations, docstrings and constraints, and types."""
    found: list[ast.AST | None] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise):
            found.append(node)
        elif isinstance(node, ast.Assert):
            found.append(node.msg)
        elif isinstance(node, ast.arg | ast.AnnAssign):
            found.append(node.annotation)
        elif isinstance(node, ast.FunctionDef):
            found.append(node.returns)
        elif isinstance(node, ast.Expr):
            found.append(node if isinstance(node.value, ast.Constant) else None)
        elif isinstance(node, ast.Assign):
            found.append(node if ast.unparse(node.targets[0]) == "CONSTRAINTS" else None)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
            types = [part for kind in node.args[1:] for part in getattr(kind, "elts", [kind])]
            found += [kind for kind in types if isinstance(kind, ast.Name)]
    return frozenset(id(part) for root in found if root is not None for part in ast.walk(root))


@dataclass(frozen=True)
class Scopes:
    """The names of a source, as Python's own compiler resolves them: which it binds where, and which it leaves open.

    A name counts as defined only where it can be seen. Read off the syntax tree alone, a parameter of one function
    would define its name for the whole module, and what another function then finds under that name is a builtin.
    Names with the line (1-based) that they are first found on, at or after the start of their scope.

    ``bound``: in any scope, in whatever way. ``free``: found in no scope around them. ``module``: those that the module
    itself binds. ``parameters``: of any function. ``imports``: (line, name) that an import binds.
    """

    bound: tuple[tuple[str, int], ...]
    free: tuple[tuple[str, int], ...]
    module: frozenset[str]
    parameters: frozenset[str]
    imports: frozenset[tuple[int, str]]


def read_scopes(source: str) -> Scopes:
    """Of a source that parses. Raises SyntaxError for what only the compiler's first pass finds."""
    top = symtable.symtable(source, "candidate", "exec")
    lines = _lines(ast.parse(source))
    bound: list[tuple[str, int]] = []
    free: list[tuple[str, int]] = []
    module = frozenset(symbol.get_name() for symbol in top.get_symbols() if _binds(symbol))
    parameters: set[str] = set()
    imports: set[tuple[int, str]] = set()
    for table in _tables(top):
        for symbol in table.get_symbols():
            name = symbol.get_name()
            if name.startswith("."):  # a comprehension's own
                continue
            line = next((n for n in lines.get(name, ()) if n >= table.get_lineno()), table.get_lineno())
            if _binds(symbol):
                bound.append((name, line))
            if symbol.is_imported():
                imports.add((line, name))
            if symbol.is_parameter():
                parameters.add(name)
            unbound = symbol.is_global() or (table is top and not _binds(symbol))
            if symbol.is_referenced() and unbound and name not in module:
                free.append((name, line))
    return Scopes(tuple(bound), tuple(free), module, frozenset(parameters), frozenset(imports))


def _tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _tables(child)


def _binds(symbol: symtable.Symbol) -> bool:
    return symbol.is_assigned() or symbol.is_parameter() or symbol.is_imported() or symbol.is_namespace()


def _lines(tree: ast.AST) -> dict[str, list[int]]:
    """Every name with the lines it is said on, in order."""
    found: dict[str, list[int]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            identifiers = [node.id]
        elif isinstance(node, ast.arg):
            identifiers = [node.arg]
        elif isinstance(node, ast.FunctionDef):
            identifiers = [node.name]
        elif isinstance(node, ast.Import | ast.ImportFrom):
            identifiers = [item.asname or item.name.split(".")[0] for item in node.names]
        else:
            continue
        for name in identifiers:
            found.setdefault(name, []).append(node.lineno)
    return {name: sorted(lines) for name, lines in found.items()}
