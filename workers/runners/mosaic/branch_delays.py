"""Delays at the head of a kernel's conditional blocks: libtpu's simulator runs what a taken branch skips.

Behind a taken branch it executes four bundles, as chips before ``tpu7x`` do, whose forward branches have one. What the
compiler put into the next three then runs although it was skipped: a wait for a copy that was not started ("No DMA
issue node found"), a push to a matrix unit ("the FIFO is full"), and libtpu aborts. Three delays there are bundles that
do nothing; in the simulation each costs a cycle. Nothing may be moved across them, which
``workers.toolchains.libtpu_simulator`` asks for.
"""

from jax._src.interpreters import mlir
from jaxlib.mlir import ir

from tilewright.workers.runners.mosaic import ir as read

_BUNDLES = 3


def with_delays(serialized: bytes) -> bytes:
    """The exported module with delays in its kernels' conditional blocks. Raises ``mosaic_ir.ModuleError``."""
    with mlir.make_ir_context(), ir.Location.unknown():
        module = read.parse(serialized)
        for call in [op for op in read.walk(module) if read.is_kernel(op)]:
            config, kernel = read.body_of(call)
            with kernel.module.context, ir.Location.unknown():
                for op in [op for op in read.walk(kernel.function) if read.name_of(op) == "scf.if"]:
                    for block in [block for region in op.operation.regions for block in region.blocks]:
                        with ir.InsertionPoint.at_block_begin(block):
                            cycle = read.constant("i32", 1)
                            for _ in range(_BUNDLES):
                                ir.Operation.create("stable_mosaic.tpu.delay", operands=[cycle])
            read.replace_body(call, config, kernel.module)
        return read.serialized_module(module)
