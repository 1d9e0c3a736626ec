"""Draws functions that launch Triton kernels out of installed packages, by lot.

``python -m experiments.studies.tune.draw WHEELS SEED COUNT`` reads a folder of wheels (``pip download --no-deps``),
lists the functions whose text launches a kernel (``name[grid](...)``) and prints the draw: a third launch a backward,
or are autograd Functions, of which both halves count. A package of hundreds gives at most ``MOST`` functions.
"""

import ast
import hashlib
import json
import random
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

MOST = 40
"""Functions of one package that are in the draw, themselves drawn by lot."""

LEFT_OUT = (
    "test", "bench", "example", "tutorial", "amd", "_ascend", "_cambricon", "_mthreads", "_kunlunxin", "_iluvatar",
    "_hygon", "_metax", "_arm", "_tsingmicro", "_sunrise", "_enflame", "_spacemit", "_thead",
)  # fmt: skip
"""Parts of a path that no user's program on an NVIDIA GPU imports."""


def launches(node: ast.AST) -> bool:
    """Whether a function's text calls ``name[...](...)`` with arguments."""
    return any(
        isinstance(n, ast.Call) and isinstance(n.func, ast.Subscript)
        and isinstance(n.func.value, ast.Name | ast.Attribute) and (n.args or n.keywords)
        and not isinstance(n.func.slice, ast.Constant)
        for n in ast.walk(node)
    )  # fmt: skip


def functions_of(text: str) -> Iterator[tuple[str, bool]]:
    """Names that launch kernels, and whether each has a backward in it."""
    tree = ast.parse(text)
    if "triton" not in text:
        return
    known = {
        n.name for n in tree.body if isinstance(n, ast.FunctionDef) and not _is_kernel(n) and launches(n)
    }
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name in known:
            yield node.name, "bwd" in node.name or "backward" in node.name
        if isinstance(node, ast.ClassDef) and any(ast.unparse(b).endswith("Function") for b in node.bases):
            names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
            if launches(node) or names & known:
                yield f"{node.name}.apply", True


def _is_kernel(node: ast.FunctionDef) -> bool:
    return any("jit" in ast.unparse(d) for d in node.decorator_list)


def listed(folder: Path) -> dict[str, list[tuple[str, bool]]]:
    """By package: (FILE:FUNCTION, backward), in order."""
    found: dict[str, list[tuple[str, bool]]] = {}
    for wheel in sorted(folder.glob("*.whl")):
        rows = found.setdefault("-".join(wheel.name.split("-")[:2]), [])
        with zipfile.ZipFile(wheel) as archive:
            for name in sorted(n for n in archive.namelist() if n.endswith(".py")):
                if any(part in name.lower() for part in LEFT_OUT):
                    continue
                try:
                    rows += [(f"{name}:{f}", b) for f, b in functions_of(archive.read(name).decode())]
                except (SyntaxError, ValueError):
                    continue
    return found


def main() -> None:
    folder, seed, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    found, lot = listed(folder), random.Random(seed)
    rows = [row for package in found.values() for row in sorted(lot.sample(package, min(MOST, len(package))))]
    back = lot.sample([n for n, b in rows if b], count // 3)
    front = lot.sample([n for n, b in rows if not b], count - count // 3)
    whole = json.dumps(found, sort_keys=True).encode()
    sys.stdout.write(json.dumps({"functions": {k: len(v) for k, v in found.items()}, "in the draw": len(rows),
                      "sha256 of the list": hashlib.sha256(whole).hexdigest(), "seed": seed,
                      "forward": sorted(front), "backward": sorted(back)}, indent=1))  # fmt: skip


if __name__ == "__main__":
    main()
