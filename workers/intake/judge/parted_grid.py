"""Grids of Triton's interpreter in parts that run at once, in memory that their processes share.

Programs of a launch do not depend on each other, unless they meet in atomic operations: then it stays whole.
"""

import math
import mmap
import os
import time
from collections.abc import Sequence
from typing import Any

import torch
import triton.runtime.interpreter as interpreter

PART_SECONDS = 0.1
"""What a part takes at least: a fork takes a tenth of it."""


def part_grids(source: str) -> None:
    """Have the launches of a module with this text part their grids, as long as their kernels took before. Call once in
    a process."""
    whole, builder = interpreter.GridExecutor.__call__, interpreter.interpreter_builder
    set_dim, set_idx = builder.set_grid_dim, builder.set_grid_idx
    seconds: dict[str, float] = {}  # of one program, by kernel

    def parted(executor: Any, *args: Any, **options: Any) -> None:
        given, name, began = (*args, *options.values()), executor.fn.__name__, time.monotonic()
        if "atomic" in source or callable(executor.grid) or not all(map(_is_plain, given)):
            return whole(executor, *args, **options)
        full = (*map(int, executor.grid), 1, 1)[:3]
        most = int(seconds.get(name, 0.0) * math.prod(full) / PART_SECONDS)
        count = max(1, min(len(os.sched_getaffinity(0)), max(full), most))
        axis, shared = full.index(max(full)), _Shared()
        own, named = (
            (args, options) if count == 1 else (map(shared, args), {n: shared(a) for n, a in options.items()})
        )
        arguments = list(own)

        def run(part: int) -> None:
            begin, end = (full[axis] * n // count for n in (part, part + 1))
            executor.grid = tuple(end - begin if n == axis else size for n, size in enumerate(full))
            builder.set_grid_dim = lambda *_: set_dim(*full)
            builder.set_grid_idx = lambda *at: set_idx(*(p + begin * (n == axis) for n, p in enumerate(at)))
            whole(executor, *arguments, **named)

        children = [_forked(run, part) for part in range(1, count)]
        try:
            run(0)
        finally:
            builder.set_grid_dim, builder.set_grid_idx = set_dim, set_idx
            codes = [os.waitpid(child, 0)[1] for child in children]
        if any(codes):
            raise RuntimeError("a program of the kernel fails")
        shared.return_all()
        seconds[name] = (time.monotonic() - began) * count / max(1, math.prod(full))

    interpreter.GridExecutor.__call__ = parted


def _is_plain(value: Any) -> bool:
    return type(value) is torch.Tensor or not isinstance(
        value, torch.Tensor | tuple | interpreter.TensorDescriptor
    )


def _forked(run: Any, part: int) -> int:
    child, code = os.fork(), 1
    if child == 0:
        try:
            run(part)
            code = 0
        finally:
            os._exit(code)
    return child


class _Shared:
    """Tensors in memory that forked processes share, for those that are given."""

    def __init__(self) -> None:
        self._pairs: dict[int, Sequence[torch.UntypedStorage]] = {}

    def __call__(self, value: Any) -> Any:
        """The same tensor there; another value as it is."""
        if type(value) is not torch.Tensor or value.numel() == 0:
            return value
        held = value.untyped_storage()
        if held.data_ptr() not in self._pairs:
            made = torch.frombuffer(mmap.mmap(-1, held.nbytes()), dtype=torch.uint8).untyped_storage()
            self._pairs[held.data_ptr()] = held, made.copy_(held)
        made = self._pairs[held.data_ptr()][1]
        return value.new_empty(0).set_(made, value.storage_offset(), value.size(), value.stride())

    def return_all(self) -> None:
        """Write what is there into the tensors that were given."""
        for held, made in self._pairs.values():
            held.copy_(made)
