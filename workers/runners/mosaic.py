"""Facts about an exported module and the Mosaic kernels in it, as plain data for the parent to judge.

Read from the IR that will be compiled, never from what the candidate says. Conditions and loop bounds that
depend on data are found by taint: a scalar is known only if it follows from grid indices and constants through
``arith`` operations; whatever is loaded, reduced or extracted is data.
"""

from __future__ import annotations

import base64
import hashlib
import json
import sys
import types
from collections import Counter
from collections.abc import Iterator
from typing import Any

from jax._src.interpreters import mlir
from jaxlib.mlir import ir, passmanager
from jaxlib.mlir.dialects import stablehlo
from jaxlib.mosaic.python import tpu

from workers.runners.scalar_flow import Unresolved, matmul_flops

KERNEL_TARGET = "tpu_custom_call"
_BODY_DIALECT = "jaxlib.mlir.dialects.stable_mosaic"
_SCALAR_OPS = ("tpu.assume_multiple", "index.casts", "index.castu", "index.constant")
_SOURCES_OF_DMA = ("tpu.enqueue_dma", "tpu.enqueue_indirect_dma")


class ModuleError(ValueError):
    """Bytes that are no exported module, or a kernel body that cannot be read. One line."""


def fingerprint(serialized: bytes) -> str:
    """Hash of what will be compiled, source locations and names of the source left out: 16 hex digits."""
    with mlir.make_ir_context() as context:
        module = _parse(context, serialized)
        digest = hashlib.sha256()
        bodies = []
        for call in _kernel_calls(module):
            config = json.loads(ir.StringAttr(call.attributes["backend_config"]).value)
            body = base64.b64decode(config["custom_call_config"].pop("body"))
            bodies.append((json.dumps(config, sort_keys=True), body))
            call.attributes["backend_config"] = ir.StringAttr.get("", context)
        digest.update(str(module.operation.get_asm(enable_debug_info=False)).encode())
    for config_text, body in bodies:
        digest.update(config_text.encode())
        with _kernel_context():
            digest.update(str(ir.Module.parse(body).operation.get_asm(enable_debug_info=False)).encode())
    return digest.hexdigest()[:16]


def module_facts(serialized: bytes) -> dict[str, Any]:
    """What ``fitness.structure`` judges: see its ``ModuleFacts`` for the keys. Raises ModuleError."""
    with mlir.make_ir_context() as context:
        module = _parse(context, serialized)
        passmanager.PassManager.parse("builtin.module(inline,symbol-dce)").run(module.operation)
        main = next((op for op in module.body.operations if _function_name(op) == "main"), None)
        if main is None:
            raise ModuleError("the module has no main function")
        block = main.regions[0].blocks[0]
        operations = Counter(_name(op) for op in _walk(main))
        calls = list(_kernel_calls(module))
        facts = {
            "operations": dict(operations),
            "functions": len(module.body.operations),
            "foreign_calls": sorted({_target(op) for op in _walk(main) if _is_foreign(op)}),
            "constant_bytes": sum(_constant_bytes(op) for op in _walk(main)),
            "unused_operands": [
                number
                for number, argument in enumerate(block.arguments)
                if not _reaches_kernel(argument, set())
            ],
            "outputs_not_from_kernels": _foreign_outputs(block),
        }
        bodies = [json.loads(ir.StringAttr(c.attributes["backend_config"]).value) for c in calls]
    facts["kernels"] = [_kernel_facts(config) for config in bodies]
    facts["fingerprint"] = fingerprint(serialized)
    return facts


def _parse(context: Any, serialized: bytes) -> Any:
    try:
        return stablehlo.deserialize_portable_artifact(context, serialized)
    except Exception as error:
        raise ModuleError(f"not an exported module: {str(error)[:200]}") from error


def _kernel_context() -> Any:
    # For every operation the bindings look for a Python module of its dialect, on disk each time there is none.
    sys.modules.setdefault(_BODY_DIALECT, types.ModuleType(_BODY_DIALECT))
    context = ir.Context()
    tpu.register_dialect(context)
    context.allow_unregistered_dialects = True
    return context


def _name(op: Any) -> str:
    return str(op.operation.name).removeprefix("stable_mosaic.")


def _walk(op: Any) -> Iterator[Any]:
    for region in op.operation.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield inner
                yield from _walk(inner)


def _function_name(op: Any) -> str:
    attributes = op.operation.attributes
    return ir.StringAttr(attributes["sym_name"]).value if "sym_name" in attributes else ""


def _target(op: Any) -> str:
    return str(ir.StringAttr(op.operation.attributes["call_target_name"]).value)


def _is_foreign(op: Any) -> bool:
    return _name(op) == "stablehlo.custom_call" and _target(op) != KERNEL_TARGET


def _is_kernel(op: Any) -> bool:
    return _name(op) == "stablehlo.custom_call" and _target(op) == KERNEL_TARGET


def _kernel_calls(module: Any) -> Iterator[Any]:
    return (op for op in _walk(module) if _is_kernel(op))


def _constant_bytes(op: Any) -> int:
    """Bytes of a dense constant that is not one repeated value."""
    if _name(op) not in ("stablehlo.constant", "arith.constant"):
        return 0
    value = op.operation.attributes["value"]
    try:
        dense = ir.DenseElementsAttr(value)
    except ValueError:
        return 0
    return 0 if dense.is_splat else len(dense) * 4


def _reaches_kernel(value: Any, seen: set[Any]) -> bool:
    for use in value.uses:
        owner = use.owner
        if _is_kernel(owner):
            return True
        for result in owner.operation.results:
            if result not in seen:
                seen.add(result)
                if _reaches_kernel(result, seen):
                    return True
    return False


def _foreign_outputs(block: Any) -> list[int]:
    """Numbers of the results into which anything but kernels' results flows."""
    terminator = block.operations[len(block.operations) - 1]
    return [n for n, value in enumerate(terminator.operands) if not _only_from_kernels(value)]


def _only_from_kernels(value: Any) -> bool:
    if isinstance(value.owner, ir.Block):
        return False
    owner = value.owner
    if _is_kernel(owner):
        return True
    operands = list(owner.operation.operands)
    return bool(operands) and all(_only_from_kernels(operand) for operand in operands)


def _kernel_facts(config: dict[str, Any]) -> dict[str, Any]:
    custom = config["custom_call_config"]
    with _kernel_context():
        try:
            module = ir.Module.parse(base64.b64decode(custom["body"]))
        except Exception as error:
            raise ModuleError(f"a kernel's body cannot be read: {str(error)[:200]}") from error
        functions = [op for op in module.body.operations if "iteration_bounds" in op.operation.attributes]
        others = [op for op in module.body.operations if op not in functions]
        if not functions:
            functions, others = others[:1], others[1:]
        main = functions[0]
        bounds: Any = main.operation.attributes["iteration_bounds"] if _has_bounds(main) else ()
        taint = _Taint()
        taint.function(main)
        return {
            "grid": [int(n) for n in bounds],
            "signature": sorted({_signature(op) for op in _walk(main)}),
            "data_branches": taint.data_branches,
            "data_loops": taint.data_loops,
            "while_loops": taint.while_loops,
            "manual_dmas": sum(_name(op) in _SOURCES_OF_DMA for op in _walk(main)),
            "loads_in_index_maps": sum("load" in _name(op) for other in others for op in _walk(other)),
            "constant_bytes": sum(_constant_bytes(op) for op in _walk(main)),
            "matmul_flops": _matmul_flops(main, [int(n) for n in bounds]),
        }


def _matmul_flops(main: Any, grid: list[int]) -> int | None:
    try:
        return matmul_flops(main, grid)
    except Unresolved:
        return None


def _has_bounds(op: Any) -> bool:
    return "iteration_bounds" in op.operation.attributes


def _signature(op: Any) -> str:
    """Operation and element type: what kind of work it is, whatever its size."""
    values = list(op.operation.results) or list(op.operation.operands)
    if not values:
        return _name(op)
    text = str(values[0].type).split(",")[0].rstrip(">")
    return f"{_name(op)}:{text.split('x')[-1].split('<')[-1]}"


class _Taint:
    """Finds branches and loops whose course is not known from grid indices and constants."""

    def __init__(self) -> None:
        self.data_branches = self.data_loops = self.while_loops = 0
        self._known: set[Any] = set()

    def function(self, op: Any) -> None:
        block = op.operation.regions[0].blocks[0]
        for argument in block.arguments:
            if str(argument.type) in ("i32", "index", "i64"):
                self._known.add(argument)
        self._block(block)

    def _block(self, block: Any) -> None:
        for op in block.operations:
            self._operation(op)

    def _operation(self, op: Any) -> None:
        name = _name(op)
        if name == "scf.if":
            self._branch(op)
        elif name == "scf.for":
            self._loop(op)
        elif name in (
            "scf.while",
            "cf.br",
            "cf.cond_br",
            "scf.execute_region",
            "func.call",
            "scf.index_switch",
        ):
            self.while_loops += 1
            for inner in _walk(op):
                self._operation(inner)
        else:
            scalar = name.startswith("arith.") or name in _SCALAR_OPS
            if scalar and all(operand in self._known for operand in op.operation.operands):
                self._known.update(op.operation.results)
            for region in op.operation.regions:
                for block in region.blocks:
                    self._block(block)

    def _branch(self, op: Any) -> None:
        known = op.operation.operands[0] in self._known
        self.data_branches += not known
        yields = []
        for region in op.operation.regions:
            for block in region.blocks:
                self._block(block)
                yields.append(list(block.operations[len(block.operations) - 1].operands))
        for number, result in enumerate(op.operation.results):
            if known and all(values[number] in self._known for values in yields):
                self._known.add(result)

    def _loop(self, op: Any) -> None:
        operands = list(op.operation.operands)
        known = all(operand in self._known for operand in operands[:3])
        self.data_loops += not known
        block = op.operation.regions[0].blocks[0]
        arguments = list(block.arguments)
        if known:
            self._known.add(arguments[0])
        carried = [n for n, value in enumerate(operands[3:]) if value in self._known]
        while True:  # a carried value is known if it starts known and stays so: the greatest fixed point
            counts = self.data_branches, self.data_loops, self.while_loops
            before = set(self._known)
            self._known.update(arguments[n + 1] for n in carried)
            self._block(block)
            yielded = list(block.operations[len(block.operations) - 1].operands)
            still = [n for n in carried if yielded[n] in self._known]
            if still == carried:
                break
            carried = still
            self._known = before
            self.data_branches, self.data_loops, self.while_loops = counts
        if known:
            self._known.update(op.operation.results[n] for n in carried)
