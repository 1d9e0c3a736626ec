"""Reading an exported module and the Mosaic kernels in it: parsing, walking, and what a kernel's body consists of."""

import base64
import io
import json
import re
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from jaxlib.mlir import ir, passmanager
from jaxlib.mlir.dialects import stablehlo
from jaxlib.mosaic.python import tpu

KERNEL_TARGET = "tpu_custom_call"
_BODY_DIALECT = "jaxlib.mlir.dialects.stable_mosaic"


class ModuleError(ValueError):
    """Bytes that are no exported module, or a kernel body that cannot be read. One line."""


def parse(serialized: bytes) -> Any:
    """The module in these bytes, in the current context. Raises ModuleError."""
    try:
        return stablehlo.deserialize_portable_artifact(ir.Context.current, serialized)
    except Exception as error:
        raise ModuleError(f"not an exported module: {str(error)[:200]}") from error


def inlined_module(serialized: bytes) -> Any:
    """The module in these bytes, calls of its own functions inlined, in the current context. Raises ModuleError."""
    module = parse(serialized)
    functions = {function_name(op): op for op in module.body.operations}
    main = main_function(module)
    while calls := [op for op in walk(main) if name_of(op) == "func.call"]:
        for call in calls:
            _inline(call, functions[ir.FlatSymbolRefAttr(call.operation.attributes["callee"]).value])
    passmanager.PassManager.parse("builtin.module(symbol-dce)").run(module.operation)
    return module


def _inline(call: Any, function: Any) -> None:
    """Put a function's operations in the place of a call."""
    body = function.operation.regions[0].blocks[0]
    copies = dict(zip(body.arguments, call.operation.operands, strict=True))
    with ir.InsertionPoint(call):
        for op in body.operations:
            if name_of(op) == "func.return":
                results = [copies[value] for value in op.operation.operands]
                break
            copy = op.operation.clone()
            for inside in (copy, *walk(copy)):
                for number, operand in enumerate(inside.operation.operands):
                    if operand in copies:
                        inside.operation.operands[number] = copies[operand]
            copies.update(zip(op.operation.results, copy.results, strict=True))
    for old, new in zip(call.operation.results, results, strict=True):
        old.replace_all_uses_with(new)
    call.operation.erase()


def kernel_context() -> Any:
    """A context in which kernel bodies parse."""
    # For every operation the bindings look for a Python module of its dialect, on disk each time there is none.
    sys.modules.setdefault(_BODY_DIALECT, types.ModuleType(_BODY_DIALECT))
    context = ir.Context()
    tpu.register_dialect(context)
    context.allow_unregistered_dialects = True
    return context


def parse_body(body: bytes) -> Any:
    """A kernel's body, in the current context. Raises ModuleError."""
    try:
        return ir.Module.parse(body)
    except Exception as error:
        raise ModuleError(f"a kernel's body cannot be read: {str(error)[:200]}") from error


def main_function(module: Any) -> Any:
    """The function that is called. Raises ModuleError."""
    main = next((op for op in module.body.operations if function_name(op) == "main"), None)
    if main is None:
        raise ModuleError("the module has no main function")
    return main


def name_of(op: Any) -> str:
    """An operation's name, the versioning prefix of kernel bodies left out."""
    return str(op.operation.name).removeprefix("stable_mosaic.")


def walk(op: Any) -> Iterator[Any]:
    """Operations inside ``op``, outermost first."""
    for region in op.operation.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield inner
                yield from walk(inner)


def function_name(op: Any) -> str:
    """A function's symbol; empty for other operations."""
    attributes = op.operation.attributes
    return ir.StringAttr(attributes["sym_name"]).value if "sym_name" in attributes else ""


def target(op: Any) -> str:
    """What a custom call calls."""
    return str(ir.StringAttr(op.operation.attributes["call_target_name"]).value)


def is_kernel(op: Any) -> bool:
    """Whether an operation runs a Mosaic kernel."""
    return name_of(op) == "stablehlo.custom_call" and target(op) == KERNEL_TARGET


@dataclass(frozen=True)
class MosaicKernel:
    """A kernel's body: its function, the functions that say where its blocks are, and its grid.

    Arguments of all of them start with the grid indices, then the ``prefetched`` operands in scalar memory.
    ``module`` is held because the rest dies with it.
    """

    module: Any
    function: Any
    index_maps: tuple[Any, ...]
    grid: tuple[int, ...]
    prefetched: int

    @classmethod
    def of(cls, module: Any) -> Self:
        """The kernel of a parsed body."""
        functions = [op for op in module.body.operations if "iteration_bounds" in op.operation.attributes]
        others = [op for op in module.body.operations if op not in functions]
        if not functions:
            functions, others = others[:1], others[1:]
        attributes = functions[0].operation.attributes
        bounds: Any = attributes.get("iteration_bounds", ())
        prefetch = attributes.get("scalar_prefetch")
        number = 0 if prefetch is None else int(ir.IntegerAttr(prefetch).value)
        return cls(module, functions[0], tuple(others), tuple(int(n) for n in bounds), number)

    def argument(self, function: Any, number: int) -> Any:
        """Operand ``number`` as ``function`` sees it; functions that place blocks see prefetched operands only."""
        return function.operation.regions[0].blocks[0].arguments[len(self.grid) + number]

    def followed(self, known: Mapping[int, np.ndarray]) -> dict[Any, np.ndarray]:
        """The body's arguments that are tables, scratch too, and what each holds first, empty where that is not known.

        ``known``: by number of an operand.
        """
        block = self.function.operation.regions[0].blocks[0]
        numbers = range(len(block.arguments) - len(self.grid))
        unknown = np.zeros(0, np.int32)
        return {
            self.argument(self.function, n): known.get(n, unknown) for n in numbers if n in known or self.is_table(n)
        }

    def readers(self, number: int) -> tuple[Any, ...]:
        """The functions that see operand ``number``."""
        return (self.function, *(self.index_maps if number < self.prefetched else ()))

    def is_table(self, number: int) -> bool:
        """Whether an operand is integers in scalar memory whose course can be followed.

        Nothing but loads and stores uses it, and what places blocks sees only one that stays what it was: blocks are
        placed ahead of the body's stores.
        """
        kind = str(self.argument(self.function, number).type)
        if not (kind.startswith("memref<") and re.search(r"[<x]i32\b", kind) and "memory_space<smem>" in kind):
            return False
        uses = {f: list(self.argument(f, number).uses) for f in self.readers(number)}
        placed = any(found for function, found in uses.items() if function is not self.function)
        every = [use for found in uses.values() for use in found]
        written = any(_is_store(use) for use in every)
        return all(_is_load(use) or _is_store(use) for use in every) and not (written and placed)


def _is_load(use: Any) -> bool:
    return name_of(use.owner) == "memref.load" and use.operand_number == 0


def _is_store(use: Any) -> bool:
    return name_of(use.owner) == "memref.store" and use.operand_number == 1


def body_of(call: Any) -> tuple[dict[str, Any], MosaicKernel]:
    """A call's configuration and the kernel in it, in a context of its own."""
    config = json.loads(ir.StringAttr(call.attributes["backend_config"]).value)
    with kernel_context(), ir.Location.unknown():
        module = parse_body(base64.b64decode(config["custom_call_config"]["body"]))
        return config, MosaicKernel.of(module)


def replace_body(call: Any, config: dict[str, Any], module: Any) -> None:
    """Give a call another kernel."""
    buffer = io.BytesIO()
    module.operation.write_bytecode(buffer, desired_version=0)
    config["custom_call_config"]["body"] = base64.b64encode(buffer.getvalue()).decode()
    call.attributes["backend_config"] = ir.StringAttr.get(json.dumps(config), call.operation.context)


def serialized_module(module: Any) -> bytes:
    """Bytes of a module, which cannot be used any more."""
    return bytes(stablehlo.serialize_portable_artifact(module, stablehlo.get_current_version()))


def constant(kind: str, value: int) -> Any:
    """A constant of an integer type, at the current place in a kernel's body."""
    return made("arith.constant", kind, [], value=ir.IntegerAttr.get(ir.Type.parse(kind), value))


def made(name: str, kind: str, operands: Sequence[Any], **attributes: Any) -> Any:
    """The result of an operation of this type, at the current place in a kernel's body."""
    if name in ("arith.addi", "arith.subi", "arith.muli"):
        attributes = {"overflowFlags": ir.Attribute.parse("#arith.overflow<none>"), **attributes}
    operation = ir.Operation.create(
        f"stable_mosaic.{name}", results=[ir.Type.parse(kind)], operands=list(operands), attributes=attributes
    )
    return operation.results[0]


def compared(predicate: int, left: Any, right: Any) -> Any:
    """``arith.cmpi``; predicates by number: eq ne slt sle sgt sge ult ule ugt uge."""
    number = ir.IntegerAttr.get(ir.Type.parse("i64"), predicate)
    return made("arith.cmpi", "i1", [left, right], predicate=number)
