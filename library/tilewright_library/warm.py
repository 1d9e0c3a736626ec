"""Makes launch plans ahead of the first call, on any machine with Triton: ``python -m <package>.warm --shapes FILE``.

FILE holds lines ``family/recipe 4096 4096 128`` (the operator's dimensions in order; ``#`` begins a comment).
``gemm_fp8_blockwise M N K`` stands for all operators of a linear layer, forward, backward and inference. Without
``--shapes``: the shapes that were verified. Plans go into the user's cache, or with ``--packs FOLDER`` into one pack an
operator. No GPU is needed.
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from . import plan_shelf, store
from .layer_rows import FAMILY as LINEAR
from .layer_rows import takes_rows, whole_rows

Shape = tuple[str, tuple[int, ...]]


def linear(m: int, n: int, k: int) -> list[Shape]:
    """The operators of ``gemm_fp8_blockwise(x, w)`` with x [M, K], w [N, K], and of its gradient."""
    rows, whole = whole_rows(m, False), whole_rows(m)
    wanted: dict[str, list[tuple[int, ...]]] = {
        "quant_1x128": [(rows, k)],
        "quant_128x128": [(n, k)],
        "gemm_nt": [(rows, n, k)],
    }
    if takes_rows(m, True):
        wanted["gemm_nt"] += [(whole, n, k), (whole, k, n)]
        wanted |= {
            "quant_dual": [(whole, k), (whole, n)],
            "quant_128x128_dual": [(n, k)],
            "gemm_nt_rows": [(n, k, whole)],
        }
    return [(f"{LINEAR}/{name}", dims) for name, shapes in wanted.items() for dims in shapes]


def read_shapes(text: str) -> list[Shape]:
    """The shapes a file asks for. Raises ValueError naming the line."""
    found: list[Shape] = []
    for number, line in enumerate(text.splitlines(), 1):
        name, *words = line.split("#")[0].split() or [""]
        if not name:
            continue
        sizes = tuple(int(word) if word.isdigit() else 0 for word in words)
        if not sizes or not all(sizes) or (name == LINEAR and len(sizes) != 3):
            wanted = "M, N and K" if name == LINEAR else "whole numbers"
            raise ValueError(f"line {number}: {line.strip()!r} is no operator with {wanted}")
        found += linear(*sizes) if name == LINEAR else [(name, sizes)]
    return list(dict.fromkeys(found))


def verified_shapes(device: str, folder: Path = store.KERNELS) -> list[Shape]:
    """Every shape that a current version was verified at on a device."""
    found: list[Shape] = []
    for operator in store.operators(folder):
        try:
            table = store.load_table(operator, device, folder)
        except store.NotServed:
            continue
        found += [(operator, region.dims) for region in table.regions]
    return found


def warm(
    shapes: Iterable[Shape], device: str, packs: Path | None, say: Callable[[str], None], folder: Path = store.KERNELS
) -> int:
    """Make plans for a CUDA device key; how many shapes got none. ``packs``: where to write packs."""
    import torch

    from . import cuda_record, torch_launch, torch_record

    architecture = int(device.removeprefix("cuda:").replace(".", ""))
    if not torch.cuda.is_available():
        torch_record.pretend(architecture)
    made: dict[tuple[str, str, str], dict[tuple[str, tuple[int, ...]], Any]] = {}
    toolchains: dict[str, Mapping[str, str]] = {}
    failed = 0
    for operator, dims in shapes:
        try:
            table = store.load_table(operator, device, folder)
            operands = table.operands
            if operands is None:
                raise store.NotServed(f"{operator}: its version does not tell the shapes of its operands")
            kernel = table.choose(dims).kernel
            in_cuda = torch_launch.recorder_of(kernel) is cuda_record
            if table.fault is not None and not in_cuda:
                raise store.NotServed(f"{operator}: {table.fault}")
            plan = torch_launch.made_plan(kernel, operands, dims, architecture, torch.device("cpu"))
            if plan is None:
                raise store.NotServed(f"{operator}: what {kernel.name} launches is more than a plan holds")
        except store.NotServed as error:
            failed += 1
            say(f"no plan for {operator} {plan_shelf.shape_key(dims)}: {error}")
            continue
        toolchain = torch_launch.recorder_of(kernel).toolchain()
        name = plan_shelf.pack_name(table.target, toolchain)
        toolchains[name] = toolchain
        made.setdefault((operator, table.target, name), {})[kernel.name, dims] = plan
        say(f"{operator} {plan_shelf.shape_key(dims)}: kernel {kernel.name}, plan {plan.digest[:16]}")
    for (operator, _, name), plans in made.items() if packs is not None else ():
        assert packs is not None
        place = packs / operator.replace("/", "__")
        place.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(plan_shelf.packed(plans, toolchains[name]))
    return failed


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="warm", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--shapes", type=Path, help="file of shapes (default: the verified ones)")
    parser.add_argument("--device", default="cuda:9.0", help="compute capability to compile for")
    parser.add_argument("--packs", type=Path, help="write packs here instead of into the user's cache")
    options = parser.parse_args(arguments)
    try:
        shapes = (
            read_shapes(options.shapes.read_text(encoding="utf-8"))
            if options.shapes
            else verified_shapes(options.device)
        )
    except (OSError, ValueError, AttributeError) as error:
        sys.stderr.write(f"--shapes: {options.shapes}: {error}\n")
        return 2
    os.environ.setdefault("TRITON_DISABLE_LINE_INFO", "1")  # paths of this machine are no part of a plan
    failed = warm(shapes, options.device, options.packs, _say)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
