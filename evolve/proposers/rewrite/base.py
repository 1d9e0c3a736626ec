"""Source rewriting: what a rule is, what it reads and what it yields.

A rule looks at a parsed kernel, offers the sites where it applies, and turns a kernel and a site into new
source. Rules match by structure and data flow, never by the names a kernel happens to use. A kernel or a
construct that a rule cannot follow raises ``Unsupported`` with the construct's name; the proposer logs it.
"""

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import cached_property, lru_cache
from typing import Any, Protocol, TypeVar

import libcst as cst
import numpy as np

from tilewright.fitness.dialect_names import names

Value = int | float | bool | str
Node = TypeVar("Node", bound=cst.CSTNode)


class Language(StrEnum):
    TRITON = "triton"
    GLUON = "gluon"
    PALLAS = "pallas"


class Unsupported(ValueError):
    """A construct a rule cannot follow; the message names it."""


@dataclass(frozen=True)
class Site:
    """A place where a rule applies. ``key`` is stable for one source; ``payload`` is the rule's own."""

    key: str
    description: str
    payload: Any = field(default=None, compare=False, hash=False, repr=False)


@dataclass(frozen=True)
class RewrittenKernel:
    """New source, the parameters the rule added (with their defaults) and the names it dropped."""

    source: str
    added: Mapping[str, Value] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()


class Rule(Protocol):
    """One source transformation."""

    name: str
    why: str
    language: Language

    def sites(self, kernel: "KernelSource") -> Sequence[Site]:
        """Where the rule applies; empty when it does not. Raises Unsupported naming what it cannot follow."""
        ...

    def apply(self, kernel: "KernelSource", site: Site, rng: np.random.Generator) -> RewrittenKernel | None:
        """The kernel rewritten at ``site``; None when a closer look shows that it cannot be."""
        ...


_LAYOUT = tuple(
    names(
        "whitespace leading trailing lpar rpar lbracket rbracket lbrace rbrace comma header footer semicolon "
        "newline empty_lines lines equal dot colon first_line"
    )
)


@lru_cache(maxsize=256)
def _content_fields(kind: type[cst.CSTNode]) -> tuple[str, ...]:
    """Fields of a node type that hold code rather than layout."""
    return tuple(f.name for f in fields(kind) if not f.name.startswith(_LAYOUT))


def children(node: cst.CSTNode) -> list[cst.CSTNode]:
    """Direct children that are code; libcst's own ``children`` also visits layout and is far slower."""
    found: list[cst.CSTNode] = []
    for name in _content_fields(type(node)):
        value = getattr(node, name)
        if isinstance(value, cst.CSTNode):
            found.append(value)
        elif isinstance(value, tuple | list):
            found += [v for v in value if isinstance(v, cst.CSTNode)]
    return found


def walk(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Every code node below and including ``node``, each before what it holds."""
    stack = [node]
    while stack:
        current = stack.pop()
        yield current
        stack.extend(reversed(children(current)))


def dotted(node: cst.CSTNode) -> str | None:
    """``a.b.c`` of a Name or an Attribute chain, None for anything else."""
    if isinstance(node, cst.Name):
        return node.value
    if isinstance(node, cst.Attribute):
        base = dotted(node.value)
        return f"{base}.{node.attr.value}" if base else None
    return None


class KernelSource:
    """A parsed dialect module. Raises ``Unsupported`` if the text is no Python or has no literals to read."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.notes: dict[str, Any] = {}
        """Analyses of this source that several rules share."""
        self.given: frozenset[str] = frozenset()
        """Names that ``fresh`` gave out."""
        try:
            self.module = cst.parse_module(source)
        except (cst.ParserSyntaxError, RecursionError, ValueError) as error:
            raise Unsupported(f"source does not parse: {str(error).splitlines()[0]}") from error
        self.literals = {name: self._literal(name) for name in ("SPACE", "DEFAULTS", "CONSTRAINTS")}
        self.space: dict[str, tuple[Value, ...]] = self._evaluate("SPACE")
        self.defaults: dict[str, Value] = self._evaluate("DEFAULTS")
        self.constraints: dict[str, str] = self._evaluate("CONSTRAINTS")

    # -- literals ---------------------------------------------------------------------------------------

    def _literal(self, name: str) -> cst.Dict | None:
        for statement in self.module.body:
            if not isinstance(statement, cst.SimpleStatementLine):
                continue
            for small in statement.body:
                value = None
                if isinstance(small, cst.Assign):
                    named = any(isinstance(t.target, cst.Name) and t.target.value == name for t in small.targets)
                    value = small.value if named else None
                elif isinstance(small, cst.AnnAssign) and isinstance(small.target, cst.Name):
                    value = small.value if small.target.value == name else None
                if value is not None:
                    if not isinstance(value, cst.Dict):
                        raise Unsupported(f"{name} is not a literal dict")
                    return value
        return None

    def _evaluate(self, name: str) -> dict:
        node = self.literals[name]
        if node is None:
            return {}
        try:
            return ast.literal_eval(self.code(node))
        except ValueError as error:
            raise Unsupported(f"{name} is not a literal: {error}") from error

    # -- text and names ---------------------------------------------------------------------------------

    def code(self, node: cst.CSTNode) -> str:
        """Source text of ``node`` without surrounding layout."""
        return self.module.code_for_node(node).strip()

    @cached_property
    def parents(self) -> dict[cst.CSTNode, cst.CSTNode]:
        found: dict[cst.CSTNode, cst.CSTNode] = {}
        for node in walk(self.module):
            for child in children(node):
                found[child] = node
        return found

    def enclosing(self, node: cst.CSTNode, kind: type[Node]) -> Node | None:
        """The nearest proper ancestor of type ``kind``."""
        current = self.parents.get(node)
        while current is not None and not isinstance(current, kind):
            current = self.parents.get(current)
        return current

    def statement(self, node: cst.CSTNode) -> cst.CSTNode:
        """The statement (an element of a block) that holds ``node``."""
        current = node
        while not isinstance(self.parents.get(current), cst.IndentedBlock | cst.Module):
            current = self.parents[current]
        return current

    @cached_property
    def own_names(self) -> frozenset[str]:
        """Every name and string in the source."""
        names = {n.value for n in walk(self.module) if isinstance(n, cst.Name)}
        return frozenset(names | set(self.space) | set(self.defaults))

    @property
    def identifiers(self) -> frozenset[str]:
        """Every name and string in the source and those given out, so that a fresh one collides with nothing."""
        return self.own_names | self.given

    def fresh(self, wanted: str) -> str:
        """``wanted``, or with a number appended if taken. Remembers what it gave out."""
        name, count = wanted, 2
        while name in self.identifiers:
            name, count = f"{wanted}_{count}", count + 1
        self.given |= {name}
        return name

    @cached_property
    def texts(self) -> dict[cst.CSTNode, str]:
        """Source text of each statement of the module, with its layout."""
        return {statement: self.module.code_for_node(statement) for statement in self.module.body}

    @cached_property
    def aliases(self) -> dict[str, str]:
        """Local name to dotted origin, from imports and from plain module-level renames (``f8 = jnp.x``)."""
        found: dict[str, str] = {}
        for node in walk(self.module):
            if isinstance(node, cst.Import):
                for item in node.names:
                    full = dotted(item.name) or ""
                    if item.asname:
                        found[self.code(item.asname.name)] = full
                    else:
                        found[full.split(".")[0]] = full.split(".")[0]
            elif isinstance(node, cst.ImportFrom) and node.module and not isinstance(node.names, cst.ImportStar):
                base = dotted(node.module) or ""
                for item in node.names:
                    local = self.code(item.asname.name) if item.asname else self.code(item.name)
                    found[local] = f"{base}.{self.code(item.name)}"
        for node in walk(self.module):
            if isinstance(node, cst.Assign) and len(node.targets) == 1:
                target, path = node.targets[0].target, dotted(node.value)
                if isinstance(target, cst.Name) and path and path.split(".")[0] in found and "." in path:
                    head, _, rest = path.partition(".")
                    found.setdefault(target.value, f"{found[head]}.{rest}")
        return found

    def qualified(self, node: cst.CSTNode) -> str:
        """Dotted origin of a Name or Attribute (``jnp.dot`` -> ``jax.numpy.dot``), "" for anything else."""
        path = dotted(node)
        if path is None:
            return ""
        head, _, rest = path.partition(".")
        origin = self.aliases.get(head, head)
        return f"{origin}.{rest}" if rest else origin

    def alias_of(self, origin: str) -> str | None:
        """The local spelling of a module such as ``jax.numpy``."""
        for local, full in self.aliases.items():
            if full == origin:
                return local
        head, _, tail = origin.rpartition(".")
        base = self.alias_of(head) if head else None
        return f"{base}.{tail}" if base else None

    def calls(self, inside: cst.CSTNode | None = None) -> Iterator[tuple[cst.Call, str]]:
        """Every call with the qualified name of what is called ("" if it is an expression)."""
        for node in walk(inside if inside is not None else self.module):
            if isinstance(node, cst.Call):
                yield node, self.qualified(node.func)

    # -- functions --------------------------------------------------------------------------------------

    @cached_property
    def functions(self) -> list[cst.FunctionDef]:
        return [n for n in walk(self.module) if isinstance(n, cst.FunctionDef)]

    def function(self, name: str, near: cst.CSTNode | None = None) -> cst.FunctionDef | None:
        """The definition of ``name`` seen from ``near``: in an enclosing function, else at module level."""
        candidates = [f for f in self.functions if f.name.value == name]
        scope = near
        while scope is not None:
            scope = self.enclosing(scope, cst.FunctionDef)
            for candidate in candidates:
                if self.enclosing(candidate, cst.FunctionDef) is scope:
                    return candidate
        return None

    @cached_property
    def language(self) -> Language:
        """Raises Unsupported when the imports name none of the three languages."""
        origins = set(self.aliases.values())
        if any(o.startswith("triton.experimental.gluon") for o in origins):
            return Language.GLUON
        if any(o.startswith("jax.experimental.pallas") for o in origins):
            return Language.PALLAS
        if any(o == "triton" or o.startswith("triton.") for o in origins):
            return Language.TRITON
        raise Unsupported("no import of triton, gluon or pallas")


def short(kernel: KernelSource, node: cst.CSTNode) -> str:
    """One line of a node, for descriptions."""
    return " ".join(kernel.code(node).split())[:60]
