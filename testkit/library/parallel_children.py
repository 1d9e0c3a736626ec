"""Run on two ranks by the library's tests of parallel training (gloo, on a CPU): JSON on rank 0's standard output."""

import json
import os
import sys
import warnings
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

WIDTH, HIDDEN, ROWS = 256, 512, 256


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    layers = (nn.Linear(WIDTH, HIDDEN, bias=False), nn.SiLU(), nn.Linear(HIDDEN, WIDTH, bias=False))
    return nn.Sequential(*layers).to(torch.bfloat16)


def off(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """Norm of the error over the norm."""
    return float((got.double() - wanted.double()).norm() / wanted.double().norm())


def alone(x: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    from tilewright_library import convert

    model = convert(mlp())
    y = model(x)
    y.float().square().sum().backward()
    return y.detach(), [p.grad for p in model.parameters()]


def work(rank: int, port: str, answer: Any) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, RANK=str(rank), WORLD_SIZE="2")
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    from tilewright_library import convert
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (2,))
    torch.manual_seed(1)
    x = torch.randn(ROWS, WIDTH).to(torch.bfloat16)
    wanted, gradients = alone(x)
    found: dict[str, Any] = {}

    model = convert(mlp())
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    y = model(x)
    y.float().square().sum().backward()
    found["tensor parallel"] = [off(y.detach(), wanted)] + [
        off(p.grad.full_tensor(), g) for p, g in zip(model.parameters(), gradients, strict=True)
    ]

    model = convert(mlp())
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    half = x.chunk(2)[rank]
    y = model(half)
    y.float().square().sum().backward()
    found["fsdp"] = [off(y.detach(), wanted.chunk(2)[rank])] + [
        off(p.grad.full_tensor() * 2, g) for p, g in zip(model.parameters(), gradients, strict=True)
    ]
    if rank == 0:
        answer.put(found)
    dist.destroy_process_group()


if __name__ == "__main__":
    context = mp.get_context("spawn")
    queue = context.Queue()
    ranks = [context.Process(target=work, args=(rank, sys.argv[1], queue)) for rank in range(2)]
    for process in ranks:
        process.start()
    result = queue.get(timeout=200)
    for process in ranks:
        process.join(60)
    sys.stdout.write(json.dumps(result) + "\n")
