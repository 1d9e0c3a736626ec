"""Facts about an exported module and the Mosaic kernels in it, as plain data for the parent to judge.

Read from the IR that will be compiled, never from what the candidate says. Conditions and loop bounds that
depend on data are found by taint: a scalar is known only if it follows from grid indices and constants through
``arith`` operations; whatever is loaded, reduced or extracted is data, but for loads from tables of known values
(``workers.runners.mosaic.known_operands``).
"""

import base64
import contextlib
import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

from jax._src.interpreters import mlir
from jaxlib.mlir import ir

from tilewright.workers.runners.mosaic import ir as read
from tilewright.workers.runners.mosaic.ir import ModuleError
from tilewright.workers.runners.mosaic.known_operands import Bound, Tables
from tilewright.workers.runners.mosaic.scalar_flow import Unresolved, matmul_flops

__all__ = ["ModuleError", "fingerprint", "module_facts"]

_SCALAR_OPS = ("tpu.assume_multiple", "index.casts", "index.castu", "index.constant")
_SOURCES_OF_DMA = ("tpu.enqueue_dma", "tpu.enqueue_indirect_dma")


def fingerprint(serialized: bytes) -> str:
    """Hashes of what will be compiled, source locations and names of the source left out: 16 hex digits of the module
    around the kernels, 16 of these."""
    with mlir.make_ir_context() as context:
        module = read.parse(serialized)
        digest = hashlib.sha256()
        bodies = []
        for call in _kernel_calls(module):
            config = json.loads(ir.StringAttr(call.attributes["backend_config"]).value)
            body = base64.b64decode(config["custom_call_config"].pop("body"))
            bodies.append((json.dumps(config, sort_keys=True), body))
            call.attributes["backend_config"] = ir.StringAttr.get("", context)
        around = hashlib.sha256(str(module.operation.get_asm(enable_debug_info=False)).encode())
    for config_text, body in bodies:
        digest.update(config_text.encode())
        with read.kernel_context():
            digest.update(str(ir.Module.parse(body).operation.get_asm(enable_debug_info=False)).encode())
    return around.hexdigest()[:16] + digest.hexdigest()[:16]


def module_facts(serialized: bytes, bound: Bound | None = None) -> dict[str, Any]:
    """What ``fitness.tpu.structure`` judges: see its ``ModuleFacts`` for the keys. Raises ModuleError.

    ``bound`` is the same module with known operands bound, where there are any.
    """
    with mlir.make_ir_context():
        given = read.inlined_module(serialized)
        arguments = read.main_function(given).regions[0].blocks[0].arguments
        unused = [number for number, value in enumerate(arguments) if not _reaches_kernel(value, set())]
        module = read.inlined_module(bound.folded if bound else serialized)
        main = read.main_function(module)
        calls = list(_kernel_calls(main))
        facts = {
            "operations": dict(Counter(read.name_of(op) for op in read.walk(main))),
            "foreign_calls": sorted(
                {read.target(op) for op in read.walk(main) if read.name_of(op) == "stablehlo.custom_call"}
                - {read.KERNEL_TARGET}
            ),
            "constant_bytes": sum(_constant_bytes(op) for op in read.walk(read.main_function(given))),
            "unused_operands": unused,
            "outputs_not_from_kernels": [
                n for n, value in enumerate(_last(main.regions[0].blocks[0])) if not _only_from_kernels(value)
            ],
        }
        bodies = [json.loads(ir.StringAttr(c.attributes["backend_config"]).value) for c in calls]
    tables = bound.tables if bound and bound.tables else [{}] * len(bodies)
    facts["kernels"] = [_kernel_facts(body, known) for body, known in zip(bodies, tables, strict=True)]
    facts["fingerprint"] = fingerprint(serialized)
    return facts


def _kernel_calls(module: Any) -> Iterator[Any]:
    return (op for op in read.walk(module) if read.is_kernel(op))


def _constant_bytes(op: Any) -> int:
    """Bytes of a dense constant that is not one repeated value."""
    if read.name_of(op) not in ("stablehlo.constant", "arith.constant"):
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
        if read.is_kernel(owner):
            return True
        for result in owner.operation.results:
            if result not in seen:
                seen.add(result)
                if _reaches_kernel(result, seen):
                    return True
    return False


def _only_from_kernels(value: Any) -> bool:
    if isinstance(value.owner, ir.Block):
        return False
    owner = value.owner
    if read.is_kernel(owner):
        return True
    operands = list(owner.operation.operands)
    return bool(operands) and all(_only_from_kernels(operand) for operand in operands)


def _kernel_facts(config: dict[str, Any], tables: Tables) -> dict[str, Any]:
    with read.kernel_context():
        kernel = read.MosaicKernel.of(read.parse_body(base64.b64decode(config["custom_call_config"]["body"])))
        main = kernel.function
        taint, flops = _Taint(), _matmul_flops(kernel, tables)
        taint.function(main, _arguments(kernel, main, tables))
        if flops is not None and taint.data_branches + taint.data_loops:
            # its course was followed to the end: what it stores in scalar memory decides it, and nothing else
            taint = _Taint()
            taint.function(main, set(kernel.followed(tables)))
        return {
            "grid": list(kernel.grid),
            "signature": sorted({_signature(op) for op in read.walk(main)}),
            "data_branches": taint.data_branches,
            "data_loops": taint.data_loops,
            "while_loops": taint.while_loops,
            "manual_dmas": sum(read.name_of(op) in _SOURCES_OF_DMA for op in read.walk(main)),
            "loads_in_index_maps": sum(  # whose value is not known before the run
                op.operation.operands[0] not in _arguments(kernel, other, tables)
                for other in kernel.index_maps
                for op in read.walk(other)
                if "load" in read.name_of(op)
            ),
            "constant_bytes": sum(_constant_bytes(op) for op in read.walk(main)),
            "matmul_flops": flops,
        }


def _arguments(kernel: read.MosaicKernel, function: Any, tables: Tables) -> set[Any]:
    """Arguments of a function of the kernel that are tables of known values."""
    seen = (number for number in tables if function is kernel.function or number < kernel.prefetched)
    return {kernel.argument(function, number) for number in seen}


def _matmul_flops(kernel: read.MosaicKernel, tables: Tables) -> int | None:
    if min(kernel.grid, default=1) < 0:
        return None
    known = {kernel.argument(kernel.function, number): values for number, values in tables.items()}
    for followed in (known, kernel.followed(tables)):  # with scratch all axes of the grid are walked
        with contextlib.suppress(Unresolved):
            return matmul_flops(kernel.function, kernel.grid, followed)
    return None


def _signature(op: Any) -> str:
    """Operation and element type: what kind of work it is, whatever its size."""
    values = list(op.operation.results) or list(op.operation.operands)
    if not values:
        return read.name_of(op)
    text = str(values[0].type).split(",")[0].rstrip(">")
    return f"{read.name_of(op)}:{text.split('x')[-1].split('<')[-1]}"


class _Taint:
    """Finds branches and loops whose course is not known from grid indices and constants."""

    def __init__(self) -> None:
        self.data_branches = self.data_loops = self.while_loops = 0
        self._known: set[Any] = set()
        self._tables: set[Any] = set()

    def function(self, op: Any, tables: set[Any]) -> None:
        """Follow a function whose arguments in ``tables`` hold known values, until data is stored there."""
        block = op.operation.regions[0].blocks[0]
        self._tables = set(tables)
        while True:
            begun = self._counts
            trusted = set(self._tables)
            self._known = {a for a in block.arguments if str(a.type) in ("i32", "index", "i64")}
            self._block(block)
            if self._tables == trusted:
                return
            self._counts = begun

    @property
    def _counts(self) -> tuple[int, int, int]:
        return self.data_branches, self.data_loops, self.while_loops

    @_counts.setter
    def _counts(self, counts: tuple[int, int, int]) -> None:
        self.data_branches, self.data_loops, self.while_loops = counts

    def _block(self, block: Any) -> None:
        for op in block.operations:
            self._operation(op)

    def _operation(self, op: Any) -> None:
        name = read.name_of(op)
        if name == "scf.if":
            self._branch(op)
        elif name == "scf.for":
            self._loop(op)
        elif name == "scf.while":
            self._while(op)
        elif name in ("cf.br", "cf.cond_br", "scf.execute_region", "func.call", "scf.index_switch"):
            self.while_loops += 1
            for inner in read.walk(op):
                self._operation(inner)
        else:
            operands = list(op.operation.operands)
            scalar = name.startswith("arith.") or name in _SCALAR_OPS
            if name == "memref.load" and operands[0] in self._tables:
                scalar, operands = True, operands[1:]
            elif name == "memref.store" and not all(v in self._known for v in (operands[0], *operands[2:])):
                self._tables.discard(operands[1])
            if scalar and all(operand in self._known for operand in operands):
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
                yields.append(_last(block))
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
        carried = self._carried(
            [n for n, value in enumerate(operands[3:]) if value in self._known], arguments[1:], [block]
        )
        if known:
            self._known.update(op.operation.results[n] for n in carried)

    def _while(self, op: Any) -> None:
        before, after = (region.blocks[0] for region in op.operation.regions)
        self._carried(
            [n for n, value in enumerate(op.operation.operands) if value in self._known],
            list(before.arguments),
            [before, after],
        )
        kept = _last(before)
        known = kept[0] in self._known
        self.data_loops += not known
        results = [n for n, value in enumerate(kept[1:]) if known and value in self._known]
        self._known.update(op.operation.results[n] for n in results)

    def _carried(self, carried: list[int], arguments: list[Any], blocks: list[Any]) -> list[int]:
        """Follow a loop's body: which carried values are known.

        One is known if it starts known and stays so: the greatest fixed point. The first of two blocks hands its
        values to the second where it goes on.
        """
        while True:
            counts, before = self._counts, set(self._known)
            self._known.update(arguments[n] for n in carried)
            for block, follows in zip_longest(blocks, blocks[1:]):
                self._block(block)
                if follows is not None:
                    handed = zip(follows.arguments, _last(block)[1:], strict=True)
                    self._known.update(argument for argument, value in handed if value in self._known)
            yielded = _last(blocks[-1])
            still = [n for n in carried if yielded[n] in self._known]
            if still == carried:
                return carried
            carried = still
            self._known, self._counts = before, counts


def _last(block: Any) -> list[Any]:
    """What a block hands on at its end."""
    return list(block.operations[len(block.operations) - 1].operands)
