"""Mistakes planted in kernels that were taken in: which of them the derived judge refuses.

``TRITON_INTERPRET=1 python -m experiments.studies.tune.twins CASES.json [--out FILE]``: each case is a name, a place
(FILE:FUNCTION), a reference and calls, as of ``tilewright check``. The module that is made of it is changed in its
kernels by one mistake at a time, and run in Triton's interpreter on the checked shapes with every kind of inputs.
"""

from __future__ import annotations

import argparse
import ast
import copy
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

SEED = 23


def _tail(node: ast.AST) -> ast.AST | None:
    """A mask that leaves out the last element."""
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Lt):
        last = node.comparators[0]
        node.comparators[0] = ast.BinOp(last, ast.Sub(), ast.Constant(1))
        return node
    return None


def _place(node: ast.AST) -> ast.AST | None:
    """The neighbour's element in place of one's own."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "tl.load":
        node.args[0] = ast.BinOp(node.args[0], ast.Add(), ast.Constant(1))
        return node
    return None


def _stale(node: ast.AST) -> ast.AST | None:
    """A sum, a largest value or a product that is an eighth too small, as one of an earlier step is."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("tl.sum", "tl.dot", "tl.max"):
        return ast.BinOp(node, ast.Mult(), ast.Constant(0.875))
    return None


def _precision(node: ast.AST) -> ast.AST | None:
    """What is loaded or stored, rounded to three bits first."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "tl.store" and len(node.args) > 1:
        text = f"({ast.unparse(node.args[1])}).to(tl.float8e5).to(tl.float32)"
        node.args[1] = ast.parse(text, mode="eval").body
        return node
    return None


def _race(node: ast.AST) -> ast.AST | None:
    """A store of which every fifth program's is lost, as where two write one place."""
    called = node.value if isinstance(node, ast.Expr) else None
    if isinstance(called, ast.Call) and ast.unparse(called.func) == "tl.store":
        return ast.parse(f"if tl.program_id(0) % 5 != 1:\n    {ast.unparse(node)}").body[0]
    return None


MISTAKES: Mapping[str, tuple[Callable[[ast.AST], ast.AST | None], bool]] = {
    "tail": (_tail, False),
    "wrong place": (_place, False),
    "stale sum": (_stale, False),
    "lower precision": (_precision, True),
    "lost store": (_race, True),
}
"""By name: the change, and whether it is made at every place or at the first."""


def twins(source: str) -> Iterator[tuple[str, str]]:
    """Mistake and changed source, in kernels that are not ours."""
    for name, (change, everywhere) in MISTAKES.items():
        tree = ast.parse(source)
        planted = _Planted(change, everywhere)
        for function in tree.body:
            if isinstance(function, ast.FunctionDef) and _taken(function):
                planted.visit(function)
        if planted.done:
            yield name, ast.unparse(ast.fix_missing_locations(tree))


def _taken(function: ast.FunctionDef) -> bool:
    return function.name != "launch" and not function.name.startswith(("torch_", "copy_argument"))


class _Planted(ast.NodeTransformer):
    def __init__(self, change: Callable[[ast.AST], ast.AST | None], everywhere: bool) -> None:
        self._change, self._everywhere, self.done = change, everywhere, False

    def visit(self, node: ast.AST) -> Any:
        if self.done and not self._everywhere:
            return node
        made = self._change(copy.deepcopy(node))
        if made is not None:
            self.done = True
            return ast.copy_location(made, node)
        return self.generic_visit(node)


def judged(answer: Mapping[str, Any], reference: str) -> list[dict[str, Any]]:
    """A row for each twin: what refuses it, empty where nothing does."""
    from tilewright.seeds.operator import Workload
    from tilewright.workers.intake.operator import Operand, Result, TakenOperator

    operands = tuple(Operand(*row[:2], tuple(row[2]), *row[3:]) for row in answer["operands"])
    results = tuple(Result(*row[:2], tuple(row[2]), *row[3:]) for row in answer["results"])
    operator = TakenOperator(
        "twin/taken", reference, answer["call"], operands, results, {}, {}, answer["precision"],
        spread=answer["spread"], kinds=tuple(answer["kinds"]),
    )  # fmt: skip
    cases = []
    for number, dims in enumerate(answer["check"]):
        shape = Workload(f"check{number}", dims)
        for kind in answer["kinds"]:
            inputs = operator.make_inputs(shape, SEED, kind)
            cases.append((inputs, operator.oracle(shape, inputs), kind))
    rows = [{"mistake": "none", "refused": _refused(answer["source"], operator, cases)}]
    return rows + [
        {"mistake": name, "refused": _refused(text, operator, cases)}
        for name, text in twins(answer["source"])
    ]


def _refused(source: str, operator: Any, cases: Sequence[Any]) -> str:
    from tilewright.fitness.gates import failure, read_gates
    from tilewright.workers.intake.trial import Crashed, TooSlow, run
    from tilewright.workers.runners.triton_common import load_module

    try:
        module = load_module(source)
        for inputs, truth, kind in cases:
            made = run(module, dict(module.DEFAULTS), inputs)
            outputs = {r.name: o for r, o in zip(operator.results, made, strict=True)}
            why = failure(read_gates(operator.gates, outputs, truth, kind), operator.gates)
            if why:
                return why
    except (Crashed, TooSlow, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"[:160]
    return ""


def main(arguments: Sequence[str] | None = None) -> int:
    from tilewright.evolve.intake.tune import NotTaken, Request, parse_place, take, target_named
    from tilewright.workers.runners.triton_guard import leave_interpreter_unguarded
    from tilewright.workers.runners.triton_interpreter import repair

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", type=Path)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(arguments)
    repair()
    leave_interpreter_unguarded()
    out = given.out.resolve() if given.out else None
    cases = json.loads(given.cases.read_text(encoding="utf-8"))
    target = target_named("interpreter")
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for case in cases:
            path, function = parse_place(case["place"])
            try:
                answer = take(Request(path, str(function), case["reference"], tuple(case["calls"])), target)
            except NotTaken as error:
                rows.append({"name": case["name"], "taken": str(error).splitlines()[-1].strip()[:200]})
                continue
            found = judged(answer, case["reference"])
            rows.append({"name": case["name"], "taken": "", "space": sorted(answer["space"]), "twins": found})
            if out is not None:
                out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
        os.chdir("/")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
