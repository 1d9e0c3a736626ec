"""Inductor's output (``output_code.py``) as a plain Triton file: its kernels, and its ``call`` as a function.

Inductor keeps kernels as texts, and chooses their blocks and grid when it runs. Here they are numbers of the file, the
first ones that its tuner would try; everything else stays as it was written.
"""

import ast
import re

from tilewright.workers.intake.texts import stored_text

FUNCTION = "call"
_KERNEL = "async_compile"
_SIZES = {"XBLOCK": 64, "YBLOCK": 32, "ZBLOCK": 8, "RBLOCK": 512, "R0_BLOCK": 512, "R1_BLOCK": 8}


class NoOutput(ValueError):
    """A file that is not Inductor's output, or one that cannot be followed. The message is one sentence."""


def plain_file(text: str) -> tuple[str, str]:
    """A file with ``call(inputs...)``, and one call's text. Raises NoOutput."""
    tree = ast.parse(text)
    kernels: dict[str, ast.FunctionDef] = {}
    for node in tree.body:
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Call)
            and (ast.unparse(node.value.func) == f"{_KERNEL}.triton" and len(node.value.args) >= 2)
        ):
            source = ast.literal_eval(node.value.args[1])
            name = str(ast.unparse(node.targets[0]))
            inner = next(n for n in ast.parse(source).body if isinstance(n, ast.FunctionDef))
            inner.name, inner.decorator_list = name, [ast.parse("triton.jit", mode="eval").body]
            kernels[name] = inner
    called = next((n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == FUNCTION), None)
    if called is None or not kernels:
        raise NoOutput("it holds no kernel and no call")
    names = _inputs(called)
    called.args = ast.parse(f"def f({', '.join(names)}): pass").body[0].args  # type: ignore[attr-defined]
    called.name, called.decorator_list = FUNCTION, []
    called.body = [n for n in _flat(called.body) if not _is_noise(n)]
    made = ast.fix_missing_locations(_Launches(kernels).visit(called))
    bodies = "\n\n\n".join(ast.unparse(ast.fix_missing_locations(n)) for n in (*kernels.values(), made))
    return f"{stored_text('inductor_head')}\n{bodies}\n", _call(tree, names)


def _inputs(called: ast.FunctionDef) -> list[str]:
    """The names to which ``call`` unpacks its list of inputs."""
    for node in called.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.value) == "args":
            target = node.targets[0]
            return [ast.unparse(n) for n in (target.elts if isinstance(target, ast.Tuple) else [target])]
    raise NoOutput("its call does not unpack its inputs")


def _flat(body: list[ast.stmt]) -> list[ast.stmt]:
    """Statements without the ``with`` of a device around them."""
    return [s for n in body for s in (_flat(n.body) if isinstance(n, ast.With) else [n])]


def _is_noise(node: ast.stmt) -> bool:
    text = ast.unparse(node)
    return (
        isinstance(node, ast.Delete)
        or re.search(r"get_raw_stream|set_device|args\.clear|^(\w+, ?)*\w*,? ?= args$|^\(.*\) = args$", text)
        is not None
    )


class _Launches(ast.NodeTransformer):
    """``kernel.run(a, b, n, stream=s)`` as a launch with a grid and blocks."""

    def __init__(self, kernels: dict[str, ast.FunctionDef]) -> None:
        self._kernels = kernels

    def visit_Call(self, node: ast.Call) -> ast.AST:
        name, _, method = ast.unparse(node.func).rpartition(".")
        if method != "run" or name not in self._kernels:
            return node
        parameters = [a.arg for a in self._kernels[name].args.args]
        blocks = [p for p in parameters if p in _SIZES]
        given = [ast.unparse(a) for a in node.args]
        sizes = dict(zip(parameters, given, strict=False))
        if any(f"{p.lower().removesuffix('block')}numel" not in sizes and p[0] in "XYZ" for p in blocks):
            raise NoOutput(f"{name} is launched in a way that is not known")
        grid = [
            f"triton.cdiv({sizes[f'{a}numel']}, {_SIZES[f'{a.upper()}BLOCK']})"
            for a in "xyz"
            if f"{a.upper()}BLOCK" in blocks
        ]
        text = "".join(f", {p}={_SIZES[p]}" for p in blocks)
        return ast.parse(f"{name}[({', '.join(grid) or '1'},)]({', '.join(given)}{text})", mode="eval").body


def _call(tree: ast.Module, names: list[str]) -> str:
    """The call that the file's own benchmark makes. Raises NoOutput."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            call = node.value
            if ast.unparse(call.func) == "rand_strided":
                dtype = next(ast.unparse(k.value) for k in call.keywords if k.arg == "dtype")
                sizes = ast.literal_eval(call.args[0])
                found[ast.unparse(node.targets[0])] = f"{dtype.removeprefix('torch.')}{list(sizes)}"
    if not set(names) <= set(found):
        raise NoOutput("it does not say how it is called: add --args")
    return ", ".join(found[name] for name in names)
