"""Compiling many points of Triton and Gluon kernels for Hopper at once, without a GPU."""

import multiprocessing
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any

from tilewright.seeds.operator import TensorSpec

Point = dict[str, Any]

Task = tuple[str, Point, list[dict[str, Any]]]
"""A source, a point and the shapes it is compiled for, as ``described`` tells their operands."""

SMEM_BYTES = 232448
"""Shared memory of a Hopper multiprocessor that one program may use."""


def described(specs: Sequence[TensorSpec]) -> list[dict[str, Any]]:
    """Specs as the compile runner takes them."""
    return [{"name": s.name, "shape": list(s.shape), "dtype": s.dtype} for s in specs]


def start(cache: str) -> None:
    """In a compiling process."""
    os.environ["TRITON_CACHE_DIR"] = cache
    os.chdir(tempfile.mkdtemp())


def compiled(source: str, point: Point, workloads: list[dict[str, Any]]) -> tuple[str, Mapping[str, bytes]]:
    """In a process that ``start`` began: why this point does not compile, or nothing; its plans by shape."""
    from tilewright.workers.child.frames import Frame
    from tilewright.workers.runners.triton.compile import run

    found: list[Frame] = []
    config = {"capability": 90, "smem_bytes": SMEM_BYTES}
    job = {"runner_config": config, "source": source, "params": point, "workloads": workloads}
    run(Frame("compile", job), found.append)
    if found[-1].kind == "error":
        return str(found[-1].data.get("message") or "failed")[:300], {}
    return "", found[-1].blobs


def _compile(source: str, point: Point, workloads: list[dict[str, Any]]) -> str:
    """Nothing, or why this point does not compile."""
    return compiled(source, point, workloads)[0]


def compiled_ahead(todo: Sequence[Task], cache: str, processes: int, seconds: float) -> dict[str, Any]:
    """Compile every task into ``cache``: what failed or was not reached in ``seconds``."""
    begun = time.monotonic()
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, context, initializer=start, initargs=(cache,))
    futures: dict[Future[str], str] = {}
    failed, late = {}, 0
    for source, point, workloads in todo:
        name = source.splitlines()[0].strip('"')[:60]
        futures[pool.submit(_compile, source, point, workloads)] = f"{name} {point}"
    for future, name in futures.items():
        try:
            if wrong := future.result(timeout=max(0.1, seconds - (time.monotonic() - begun))):
                failed[name] = wrong
        except Exception as error:  # noqa: BLE001 - a compiler that dies or hangs costs its point, not the run
            late += 1
            failed.setdefault("not compiled ahead", type(error).__name__)
    children = list(getattr(pool, "_processes", {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for child in children:
        child.kill()
    return {"points": len(todo), "failed": failed, "late": late}
