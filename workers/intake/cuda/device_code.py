"""CUDA C++ as it stands in people's files: its kernels, and its device code without the host's."""

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tilewright.workers.intake.child_program import Refusal

_SAME = {
    "float32 fp32": "float",
    "float64 fp64": "double",
    "bool u8": "bool",
    "int32 i32": "int|int32_t|signed",
    "uint32 u32": "unsigned|unsigned int|uint32_t|uint",
    "int64 i64": "long|long long|int64_t|long int|long long int",
    "uint64 u64": "size_t|unsigned long|unsigned long long|uint64_t",
    "int16 i16": "short|int16_t",
    "int8 i8": "char|int8_t|signed char",
    "uint8 u8": "unsigned char|uint8_t",
    "float16 fp16": "half|__half",
    "bfloat16 bf16": "__nv_bfloat16|nv_bfloat16",
}
TYPES = {name: kinds.split() for kinds, names in _SAME.items() for name in names.split("|")}
"""C++ types: the dtype of the tensors that they point into, and the kind of number of an argument."""

_VENDOR = re.compile(
    r"cuda_fp\w+\.h|cuda_bf16\.h|mma\.h|cooperative_groups.*|cuda_pipeline\w*\.h|cuda/.*|cub/(?!cub\.cuh).*"
)

_LIMITS = r"\bstd::numeric_limits<\s*float\s*>::(infinity|max|lowest|epsilon)\(\)"
_MATHS = r"\bstd::(?=(f?max|f?min|f?abs|[a-z]*(exp|log|sqrt|pow|tan|sin|cos|floor|ceil|round|erf)\w*)\()"
_PROVIDED = {
    **dict.fromkeys(("INFINITY", "CUDART_INF_F", "HUGE_VALF", "LIMIT_infinity"), "__int_as_float(0x7f800000)"),
    **dict.fromkeys(("FLT_MAX", "LIMIT_max"), "3.402823466e+38f"),
    "LIMIT_lowest": "(-3.402823466e+38f)",
    **dict.fromkeys(("FLT_EPSILON", "LIMIT_epsilon"), "1.192092896e-07f"),
    "FLT_MIN": "1.175494351e-38f",
    "NAN": "__int_as_float(0x7fffffff)",
    "INT_MAX": "2147483647",
    "INT_MIN": "(-2147483647 - 1)",
    "M_PI": "3.14159265358979323846",
    "M_SQRT1_2": "0.70710678118654752440",
    "int8_t": "signed char",
    "uint8_t": "unsigned char",
    "int16_t": "short",
    "uint16_t": "unsigned short",
    "int32_t": "int",
    "uint32_t": "unsigned int",
    "int64_t": "long long",
    **dict.fromkeys(("uint64_t", "uintptr_t"), "unsigned long long"),
}
"""What the C library's headers would have defined; NVRTC has none."""

_INTEGERS = r"(?:int|unsigned(?:\s+int)?|size_t|u?int\d+_t|long)"
_CONSTANT = re.compile(
    rf"(?:(?:static|constexpr|const|inline)\s+)+(?:{_INTEGERS}|float|double|bool)\s+(\w+\s*=[^;{{}}\[]*);"
)
"""Constants that a file declares; those of functions need no memory."""

_DEFINED = (
    rf"(?:^[ \t]*#[ \t]*define[ \t]+|\b(?:(?:static|constexpr|const)\s+)+{_INTEGERS}\s+)"
    r"{0}[ \t]*[ \t=][ \t]*{1}(?=[ \t]*(?:;|$|//))[ \t]*;?"
)
"""The definition of a whole number."""


_CHECKED = r"^([ \t]*\w*(?:CHECK|ASSERT)\w*\([^;{}\\\n]*\))[ \t]*$"
"""A macro that checks something, in a line of its own without a semicolon, which no parser takes for a statement."""


class Parameter(NamedTuple):
    """A kernel's parameter: ``kind``: the type that it is of or points to, without const."""

    name: str
    kind: str
    pointer: bool
    const: bool


class Kernel(NamedTuple):
    """A kernel; ``text``: all of it; ``templates``: names of its template parameters."""

    parameters: tuple[Parameter, ...]
    text: str
    templates: tuple[str, ...] = ()


def within(node: Any, *kinds: str) -> Iterator[Any]:
    """Nodes of these kinds, the node itself among them, from the outside in."""
    if node.type in kinds:
        yield node
    for part in node.children:
        yield from within(part, *kinds)


class DeviceCode:
    """A file's device code. ``text``: what NVRTC is given; ``numbers``: whole numbers that it names, by #define,
    constexpr or const; ``headers``: whether it includes CUDA's. ``hosts``: the host's functions as syntax trees."""

    def __init__(self, source: str) -> None:
        """Raises Refusal where the parser is not installed."""
        try:
            import tree_sitter
            import tree_sitter_cuda
        except ImportError as error:
            raise Refusal("CUDA C++ needs its parser: pip install 'tilewright[cuda]'") from error
        self.kernels, self.hosts = dict[str, Kernel](), dict[str, Any]()
        self.headers, data = False, re.sub(_CHECKED, r"\1;", source, flags=re.M).encode()
        self._parser = tree_sitter.Parser(tree_sitter.Language(tree_sitter_cuda.language()))
        for node, own in reversed([*self._changed(self._parser.parse(data).root_node)]):
            data = data[: node.start_byte] + own.encode() + data[node.end_byte :]
        text = "\n".join(line.rstrip() for line in data.decode().splitlines())
        text = re.sub(_MATHS, "", re.sub(_LIMITS, r"LIMIT_\1", text))
        wanted = set(re.findall(r"\w+", text)) - set(re.findall(r"#\s*define\s+(\w+)", text))
        lines = {n: f"typedef {v} {n};" if n.endswith("_t") else f"#define {n} {v}" for n, v in _PROVIDED.items()}
        head = "".join(f"{line}\n" for name, line in lines.items() if name in wanted)
        self.text = head + re.sub(r"\n{3,}", "\n\n", text).strip("\n") + "\n"
        rows = re.findall(_DEFINED.format(r"(\w+)", r"(\d+)"), self.text, re.M)
        self.numbers = {n: int(v) for n, v in rows if int(v) and all(v == w for m, w in rows if m == n)}

    def parameters(self, host: str) -> list[str]:
        """Names of a host function's parameters. Raises Refusal."""
        if host in self.kernels:
            raise Refusal(f"{host} is a kernel, and how it is launched is not said in C++")
        if host not in self.hosts:
            known = ", ".join([*self.hosts, *self.kernels]) or "nothing"
            raise Refusal(f"its C++ defines no host function {host}, but {known}")
        parts = next(within(self.hosts[host], "parameter_list")).named_children
        return [_parameter(part).name for part in parts if "parameter" in part.type]

    def expression(self, text: str) -> Any:
        """An expression in C++ as a syntax tree."""
        made = self.tree(f"int v = {text};")
        return next((n.child_by_field_name("value") for n in within(made, "init_declarator")), made)

    def tree(self, text: str) -> Any:
        """A text as a syntax tree."""
        return self._parser.parse(text.encode()).root_node

    def places(self) -> tuple[list[int], list[int]]:
        """In the text's bytes: where innermost loops begin that are unrolled by nobody, and before which names
        ``__restrict__`` may stand."""
        root, data = self.tree(self.text), self.text.encode()
        loops, names = [], []
        for loop in within(root, "for_statement"):
            before = data[: loop.start_byte].rstrip().rpartition(b"\n")[2]
            test = loop.child_by_field_name("condition")
            counted = test is None or re.search(rb"[<>]=?\s*\d+$", test.text)
            if not counted and b"#pragma" not in before and len([*within(loop, "for_statement")]) == 1:
                loops.append(loop.start_byte)
        for kernel in within(root, "function_definition"):
            rows = next(within(kernel, "parameter_list")).named_children
            if b"__global__" in kernel.text.partition(b"(")[0]:
                plain = [r for r in rows if "parameter" in r.type and b"*" in r.text and b"restrict" not in r.text]
                names += [[*within(r, "identifier")][-1].start_byte for r in plain]
        return loops, names

    def constant(self, name: str, given: Sequence[str] = ()) -> Any:
        """What a macro stands for, with arguments ``given``, as a syntax tree; None where the text defines none."""
        listed = r"\(([^()]*)\)" if given else "()"
        found = re.search(rf"^[ \t]*#[ \t]*define[ \t]+{name}{listed}[ \t]+(.+)$", self.text, re.M)
        values = dict(zip(re.findall(r"\w+", found[1]), given, strict=False)) if found else {}
        number = re.sub(
            r"\w+", lambda word: f"({values[word[0]]})" if word[0] in values else word[0], found[2] if found else ""
        )
        return self.expression(number) if number else None

    def _changed(self, root: Any) -> Iterator[tuple[Any, str]]:
        """What the device does not compile, with nothing in its place, and constants of the file, which would lie in
        memory, as macros. Kernels are noted."""
        for node in root.children:
            kind, text = node.type, node.text.decode()
            inner = next(within(node, "function_definition"), None)
            if kind in ("linkage_specification", "namespace_definition", "declaration_list", "preproc_ifdef"):
                changed = [*self._changed(node)]
                alone = any(part.type in ("function_definition", "declaration") for part in node.children)
                yield from ((node, ""),) if changed and alone else changed
            elif kind == "preproc_include":
                vendor = _VENDOR.fullmatch(text.split(None, 1)[-1].strip().strip('<>"')) is not None
                self.headers |= vendor
                yield from () if vendor else ((node, ""),)
            elif kind in ("function_definition", "template_declaration") and inner is not None:
                declarator = next(within(inner, "function_declarator"), inner)
                words = inner.text.decode().partition("{")[0]
                name = str(declarator.child_by_field_name("declarator").text.decode())
                if "__global__" in words and name:
                    parts = next(within(inner, "parameter_list")).named_children
                    own = tuple(_parameter(part) for part in parts if "parameter" in part.type)
                    listed = node.named_children[0].named_children if kind == "template_declaration" else ()
                    templates = tuple(_parameter(part).name for part in listed if "parameter" in part.type)
                    self.kernels[name] = Kernel(own, inner.text.decode(), templates)
                elif not re.search("__device__|constexpr|struct", words):
                    self.hosts[name] = inner
                    yield node, ""
            elif kind == "declaration" and (constant := _CONSTANT.fullmatch(text)) is not None:
                rows = [part.partition("=") for part in re.split(r",(?=\s*\w+\s*=)", constant[1])]
                values = [(name.strip(), " ".join(value.split())) for name, _, value in rows]
                yield node, "\n".join(f"#define {n} {v if v.isdigit() else f'({v})'}" for n, v in values)
            elif kind in ("using_declaration", "declaration", "expression_statement", "ERROR"):
                declares = next(within(node, "function_declarator"), None) is not None
                if (declares and "__device__" not in text) or re.search(r"\b(torch|at|c10|std)\b", text):
                    yield node, ""


def without_numbers(text: str, names: Sequence[str]) -> str:
    """A text without the definitions of these numbers, which a compiler is told instead."""
    for name in names:
        text = re.sub(_DEFINED.format(f"({name})", r"(\d+)"), "", text, flags=re.M)
    return text


def _parameter(node: Any) -> Parameter:
    text, names = node.text.decode().partition("=")[0], [*within(node, "identifier", "type_identifier")]
    name = names[-1].text.decode() if names else ""
    kind = re.sub(r"\b(const|__restrict__|__restrict|volatile)\b", " ", text.partition("*")[0])
    kind = kind if "*" in text else re.sub(rf"\b{name}\b.*", "", kind)
    constant = "const" in text.partition("*")[0].split()
    return Parameter(name, " ".join(kind.split()), "*" in text or "[" in text, constant)
