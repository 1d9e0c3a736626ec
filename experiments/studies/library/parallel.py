"""The decoder on several GPUs of one host: alone on each, under FSDP2, under tensor parallel; bf16 and the library.

    PYTHONPATH=library python experiments/studies/library/parallel.py OUT.json [--layers 8 --tokens 8192 --steps 12]

Every rank trains on ``--tokens`` tokens a step (under tensor parallel all ranks on the same). Seconds are those of
the slowest rank, medians over steps after the third, the kinds in turns. ``fsdp-keep`` keeps gathered weights for the
backward pass. A way such as ``fsdp:8`` lets NCCL use at most eight thread blocks: what they hold, a product that takes
all multiprocessors waits for.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parent))
from decoder_model import HEAD, HEADS, HIDDEN, KV_HEADS, Block, Decoder, batches, made


def sharded(model: Decoder, way: str, mesh: Any) -> None:
    """Spread a model over the ranks, in place."""
    if way.startswith("fsdp"):
        from torch.distributed.fsdp import fully_shard

        again = "keep" not in way
        for block in model.blocks:
            fully_shard(block, mesh=mesh, reshard_after_forward=again)
        fully_shard(model, mesh=mesh, reshard_after_forward=again)
    elif way == "tensor":
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        plan = {
            "qkv": ColwiseParallel(),
            "out": RowwiseParallel(),
            "gate_up": ColwiseParallel(),
            "down": RowwiseParallel(),
        }
        for block in model.blocks:
            split_rows(block, mesh.size())
            parallelize_module(block, mesh, plan)


def split_rows(block: Block, ranks: int) -> None:
    """Order the rows of the joint projections so that every rank's part holds its heads, its gates and its ups."""
    q, k = HEADS * HEAD, KV_HEADS * HEAD
    for layer, sizes in ((block.qkv, (q, k, k)), (block.gate_up, (HIDDEN, HIDDEN))):
        parts = [part.chunk(ranks) for part in layer.weight.data.split(sizes)]
        layer.weight.data = torch.cat([part[rank] for rank in range(ranks) for part in parts])


def seconds_of(kind: str, way: str, mesh: Any, options: argparse.Namespace) -> dict[str, Any]:
    rank = dist.get_rank()
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    model = made(kind, options.layers, 0)
    sharded(model, way, mesh)
    if way == "tensor":
        for block in model.blocks:
            block.forward = forward_of_a_part.__get__((block, mesh.size()))
    kinds: dict[type, list[Any]] = {}
    for parameter in model.parameters():  # a fused step takes sharded or whole tensors, not both at once
        kinds.setdefault(type(parameter.data), []).append(parameter)
    groups = [{"params": group} for group in kinds.values()]
    optimiser = torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95), fused=True)
    data = batches(options.tokens, 7 if way == "tensor" else 7 + rank)
    taken, losses = [], []
    for _ in range(options.steps):
        ids, targets = next(data)
        torch.cuda.synchronize()
        dist.barrier()
        began = time.perf_counter()
        optimiser.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(ids).flatten(0, 1).float(), targets.flatten())
        loss.backward()
        optimiser.step()
        torch.cuda.synchronize()
        spent = torch.tensor(time.perf_counter() - began, device="cuda")
        dist.all_reduce(spent, dist.ReduceOp.MAX)
        taken.append(float(spent))
        losses.append(round(float(loss.detach()), 4))
    found = {"seconds": taken, "losses": losses, "peak GB": torch.cuda.max_memory_allocated() / 1e9}
    return found


def forward_of_a_part(self: tuple[Block, int], x: torch.Tensor) -> torch.Tensor:
    """``Block.forward`` with this rank's part of the heads and of the hidden layer."""
    block, ranks = self
    batch, length, _ = x.shape
    sizes = [HEADS * HEAD // ranks, KV_HEADS * HEAD // ranks, KV_HEADS * HEAD // ranks]
    q, k, v = block.qkv(block.norm1(x)).split(sizes, dim=-1)
    q, k, v = (t.view(batch, length, -1, HEAD).transpose(1, 2) for t in (q, k, v))
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    x = x + block.out(mixed.transpose(1, 2).reshape(batch, length, -1))
    gate, up = block.gate_up(block.norm2(x)).chunk(2, dim=-1)
    return x + block.down(F.silu(gate) * up)


def limited(blocks: int) -> Any:
    """A mesh of all ranks whose communication takes at most so many thread blocks."""
    from torch.distributed.device_mesh import DeviceMesh

    chosen = dist.ProcessGroupNCCL.Options()
    chosen.config.max_ctas = blocks
    return DeviceMesh.from_group(dist.new_group(pg_options=chosen), "cuda")


def work(rank: int, ranks: int, options: argparse.Namespace) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", RANK=str(rank), WORLD_SIZE=str(ranks))
    os.environ.setdefault("MASTER_PORT", "29517")
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=ranks, device_id=torch.device("cuda", rank))
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cuda", (ranks,))
    found: dict[str, Any] = {"torch": torch.__version__, "ranks": ranks, "runs": {}}
    for way in options.ways.split(","):
        blocks = way.partition(":")[2]
        on = limited(int(blocks)) if blocks else mesh
        for kind in options.turns.split(","):
            try:
                run = seconds_of(kind, way, on, options)
            except Exception as error:  # noqa: BLE001 - reported; the ranks fail alike
                run = {"error": repr(error)[:400]}
            found["runs"].setdefault(f"{kind} {way}", []).append(run)
            if rank == 0:
                options.out.write_text(json.dumps(found, indent=1), encoding="utf-8")
        told = {kind: found["runs"][f"{kind} {way}"] for kind in ("bf16", "library")}
        if rank == 0 and all("seconds" in run for runs in told.values() for run in runs):
            taken = {
                k: statistics.median(s for run in runs for s in run["seconds"][3:])
                for k, runs in told.items()
            }
            times = found.setdefault("speed-up", {})
            times[way] = {**taken, "ratio": taken["bf16"] / taken["library"]}
            print(way, times[way], flush=True)  # noqa: T201
            options.out.write_text(json.dumps(found, indent=1), encoding="utf-8")
        elif rank == 0:
            print(way, [run.get("error") for runs in told.values() for run in runs], flush=True)  # noqa: T201
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--ways", default="alone,fsdp,tensor")
    parser.add_argument("--turns", default="bf16,library,library,bf16", help="kinds in the order they run")
    options = parser.parse_args()
    ranks = torch.cuda.device_count()
    mp.spawn(work, (ranks, options), nprocs=ranks)


if __name__ == "__main__":
    main()
