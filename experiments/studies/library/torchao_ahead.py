"""Compiles what torchao's quantisers tune over, on a CPU, ahead of measuring: ``python torchao_ahead.py M,N,K ...``.

Its five kernels have 4 or 45 configurations a size: minutes a shape on the device, most of it compiling. The compiled
code goes into Triton's cache, where tuning then finds it. ``tune_briefly`` lets tuning time each for milliseconds,
``keep_tuned`` spares torch.compile what eager code has found out.
"""

from __future__ import annotations

import os
import sys
from multiprocessing import Process
from typing import Any

import torch

PROCESSES = 8


def kernels() -> dict[str, Any]:
    """torchao's tuned quantisers by name."""
    from torchao.prototype.blockwise_fp8_training import kernels as module
    from triton.runtime.autotuner import Autotuner

    return {name: value for name, value in vars(module).items() if isinstance(value, Autotuner)}


def tune_briefly() -> None:
    """Time every configuration for some 15 ms, not 125."""
    import triton.testing

    def brief(call: Any, quantiles: Any) -> Any:
        return triton.testing.do_bench(call, warmup=3, rep=12, quantiles=quantiles)

    for kernel in kernels().values():
        kernel.__dict__["do_bench"] = brief


def keep_tuned() -> None:
    """Leave each kernel those configurations that tuning chose so far, at any size: torch.compile tunes anew."""
    for kernel in kernels().values():
        chosen = {str(config): config for config in kernel.cache.values()}
        if chosen:
            kernel.configs = list(chosen.values())


def _call(m: int, n: int, k: int) -> None:
    """The calls of one layer's forward and backward, on tensors of the host whose memory nobody touches."""
    from torchao.prototype.blockwise_fp8_training import kernels as module

    x, w, dy = (torch.empty(a, b, dtype=torch.bfloat16) for a, b in ((m, k), (n, k), (m, n)))
    module.triton_fp8_blockwise_act_quant_lhs(x, 128)
    module.triton_fp8_blockwise_act_quant_lhs(dy, 128)
    module.triton_fp8_blockwise_act_quant_rhs(x, 128)
    module.triton_fp8_blockwise_act_quant_transposed_lhs(dy, 128)
    module.triton_fp8_blockwise_weight_quant_rhs(w, block_size=128)
    module.triton_fp8_blockwise_weight_quant_transposed_rhs(w, block_size=128)


def _warm(part: int, shapes: list[tuple[int, int, int]]) -> None:
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver
    from triton.runtime.autotuner import Autotuner

    class Target:
        """As much of a driver as compiling asks for."""

        def get_current_target(self) -> GPUTarget:
            return GPUTarget("cuda", 90, 32)

        def get_current_device(self) -> int:
            return 0

        def get_current_stream(self, device: int) -> int:
            return 0

    driver.set_active(Target())
    calls: dict[tuple[Any, ...], Any] = {}

    def instead(self: Any, *args: Any, grid: Any = None, warmup: bool = False, **kwargs: Any) -> None:
        def told(value: Any) -> Any:
            return (value.dtype, value.data_ptr() % 16) if isinstance(value, torch.Tensor) else value

        sizes = tuple(
            value % 16 == 0 if i and type(value) is int and value != 1 else told(value)
            for i, value in enumerate(args)
        )
        calls.setdefault((id(self), sizes, tuple(sorted(kwargs.items()))), (self, args, kwargs))

    Autotuner.run = instead
    for shape in shapes:
        _call(*shape)
    jobs = [
        (kernel, args, kwargs, config) for kernel, args, kwargs in calls.values() for config in kernel.configs
    ]
    for kernel, args, kwargs, config in jobs[part::PROCESSES]:
        try:
            kernel.fn.warmup(*args, grid=(1,), **kwargs, **config.all_kwargs())
        except Exception as error:  # noqa: BLE001 - what does not compile is skipped by tuning as well
            sys.stderr.write(f"{kernel.fn.__name__} {config}: {error!r}\n"[:300])
    sys.stdout.write(f"part {part}: {len(jobs[part::PROCESSES])} of {len(jobs)} configurations\n")
    sys.stdout.flush()


def main() -> None:
    shapes = [tuple(map(int, word.split(","))) for word in sys.argv[1:]]
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    workers = [Process(target=_warm, args=(part, shapes)) for part in range(PROCESSES)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


if __name__ == "__main__":
    main()
