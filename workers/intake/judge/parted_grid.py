"""Grids of Triton's interpreter in parts that run at once, in memory that their processes share.

Programs of a launch do not depend on each other, unless they meet in atomic operations: then it stays whole.
"""

import math
import mmap
import os
from typing import Any

import torch
import triton.runtime.interpreter as interpreter

LEAST = 32
"""Programs of a part: they take about as long as the fork of its process."""


def part_grids(source: str) -> None:
    """Have the launches of a module with this text part their grids. Call once in a process."""
    whole, builder = interpreter.GridExecutor.__call__, interpreter.interpreter_builder
    set_dim, set_idx = builder.set_grid_dim, builder.set_grid_idx

    def parted(executor: Any, *args: Any, **options: Any) -> None:
        full = (1,) if callable(executor.grid) else (*map(int, executor.grid), 1, 1)[:3]
        count = min(len(os.sched_getaffinity(0)), max(full), math.prod(full) // LEAST)
        given = [*args, *options.values()]
        if "atomic" in source or count < 2 or not all(map(_is_plain, given)):
            return whole(executor, *args, **options)
        pairs: dict[int, list[torch.UntypedStorage]] = {}
        arguments = [_shared(a, pairs) for a in args]
        named = {name: _shared(a, pairs) for name, a in options.items()}
        axis = full.index(max(full))

        def run(part: int) -> None:
            begin, end = (full[axis] * n // count for n in (part, part + 1))
            executor.grid = tuple(end - begin if n == axis else size for n, size in enumerate(full))
            builder.set_grid_dim = lambda *_: set_dim(*full)
            builder.set_grid_idx = lambda *at: set_idx(*(p + begin * (n == axis) for n, p in enumerate(at)))
            whole(executor, *arguments, **named)

        children = []
        for part in range(1, count):
            if (child := os.fork()) == 0:
                try:
                    run(part)
                    os._exit(0)
                finally:
                    os._exit(1)
            children.append(child)
        try:
            run(0)
        finally:
            builder.set_grid_dim, builder.set_grid_idx = set_dim, set_idx
            codes = [os.waitpid(child, 0)[1] for child in children]
        if any(codes):
            raise RuntimeError("a program of the kernel fails")
        for held, made in pairs.values():
            held.copy_(made)

    interpreter.GridExecutor.__call__ = parted


def _is_plain(value: Any) -> bool:
    return type(value) is torch.Tensor or not isinstance(
        value, torch.Tensor | tuple | interpreter.TensorDescriptor
    )


def _shared(value: Any, pairs: dict[int, list[torch.UntypedStorage]]) -> Any:
    """A tensor in memory that forked processes share; ``pairs``: what it lay in, with that, by address."""
    if not isinstance(value, torch.Tensor) or value.numel() == 0:
        return value
    held = value.untyped_storage()
    if held.data_ptr() not in pairs:
        made = torch.frombuffer(mmap.mmap(-1, held.nbytes()), dtype=torch.uint8).untyped_storage()
        pairs[held.data_ptr()] = [held, made.copy_(held)]
    made = pairs[held.data_ptr()][1]
    return value.new_empty(0).set_(made, value.storage_offset(), value.size(), value.stride())
