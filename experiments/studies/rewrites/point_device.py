"""The device's side of ``points``: operands, answers on some rows, times, peers. One process, one GPU."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from experiments.studies.h200.fp8_contenders import scaled_product
from experiments.studies.rewrites.point_cases import Case
from tilewright.library.plans.format import Plan
from tilewright.library.plans.replay import Ready

Json = dict[str, Any]
Tensors = dict[str, torch.Tensor]
LEAST_DB = 40.0
CHECKED_ROWS = 192
FINALISTS, ROUNDS, CALLS = 4, 6, 4
FLUSH_BYTES = 1 << 28
SPIN_CYCLES = 200_000


def _quantised(m: int, k: int, generator: torch.Generator, blocks: bool) -> tuple[torch.Tensor, torch.Tensor]:
    q, s = [], []
    for start in range(0, m, 4096):
        x = torch.randn((min(4096, m - start), k), generator=generator, device="cuda", dtype=torch.float32)
        parts = x.view(-1, 128, k // 128, 128) if blocks else x.view(-1, 1, k // 128, 128)
        scale = parts.abs().amax((1, 3), keepdim=True) / 448.0
        q.append((parts / scale).to(torch.float8_e4m3fn).view(-1, k))
        s.append(scale[:, 0, :, 0])
    scales = torch.cat(s)
    return torch.cat(q), scales if blocks else scales.T.contiguous()


def operands(case: Case, shape: str) -> Tensors:
    """Drawn by one seed."""
    generator = torch.Generator("cuda").manual_seed(7)
    given = case.shapes[shape][0]
    if case.kind == "fp8":
        (m, k), (n, _) = given["a_q"][0], given["b_q"][0]
        a_q, a_s = _quantised(m, k, generator, False)
        b_q, b_s = _quantised(n, k, generator, True)
        return {"a_q": a_q, "a_s": a_s, "b_q": b_q, "b_s": b_s}
    made = {}
    for name, (sizes, dtype) in given.items():
        if dtype == "uint8":
            made[name] = torch.randint(0, 256, sizes, generator=generator, dtype=torch.uint8)
        elif dtype == "int32":  # sizes of groups that add up to the rows
            rows = next(iter(given.values()))[0][0]
            cuts = torch.randint(0, rows + 1, (sizes[0] - 1,), generator=generator).sort().values
            ends = torch.cat([torch.tensor([0]), cuts, torch.tensor([rows])])
            made[name] = ends.diff().to(torch.int32)
        else:
            drawn = torch.randn(sizes, generator=generator, device="cuda", dtype=torch.float32)
            made[name] = drawn.to(torch.bfloat16)
    return made


def answer(case: Case, x: Tensors, rows: torch.Tensor) -> torch.Tensor:
    """Some rows in float32."""
    if case.kind == "fp8":
        k = x["a_q"].shape[1]
        a = x["a_q"][rows].float() * x["a_s"][:, rows].T.repeat_interleave(128, 1)
        parts = []
        for start in range(0, x["b_q"].shape[0], 4096):
            part = x["b_q"][start : start + 4096].float()
            scale = x["b_s"][start // 128 : (start + 4096) // 128].repeat_interleave(128, 0)[: part.shape[0]]
            parts.append(a @ (part.view(-1, k // 128, 128) * scale[:, :, None]).view(-1, k).T)
        return torch.cat(parts, 1)
    if case.kind == "matmul":
        return x["a"][rows].float() @ x["b"].float()
    if case.kind == "linear_gelu":
        return F.gelu(x["x"][rows].float() @ x["w"].float() + x["bias"].float())
    if case.kind == "softmax":
        return torch.softmax(x["x"][rows].float(), 1)
    if case.kind == "rms_norm":
        part = x["x"][rows].float()
        return part / torch.sqrt((part * part).mean(1, keepdim=True) + 1e-6) * x["w"].float()
    if case.kind == "rms_norm_quantise":
        part = x["x"][rows].float()
        y = part / torch.sqrt((part * part).mean(1, keepdim=True) + 1e-6) * x["w"].float()
        return (y / (y.abs().amax(1, keepdim=True) / 448.0)).to(torch.float8_e4m3fn).float()
    if case.kind == "attention":
        parts = []
        for h in rows.tolist():
            head = x["q"][h]
            s = head.float() @ x["k"][h].float().T * head.shape[1] ** -0.5
            hidden = torch.ones_like(s, dtype=torch.bool).triu(1)
            parts.append(torch.softmax(s.masked_fill(hidden, -float("inf")), 1) @ x["v"][h].float())
        return torch.stack(parts)
    if case.kind == "int4_matmul":
        return x["x"][rows].float() @ _unpacked(x).float() * x["s"].float().reshape(-1)
    if case.kind == "grouped_matmul":
        ends = x["sizes"].cumsum(0)
        group = torch.searchsorted(ends, rows, right=True)
        return torch.stack([x["x"][r].float() @ x["w"][g].float() for r, g in zip(rows, group, strict=True)])
    raise KeyError(case.kind)


def _unpacked(x: Tensors) -> torch.Tensor:
    """Codes of four bits as bfloat16 [K, N]."""
    pair = x["w"].to(torch.int32)
    codes = torch.stack([pair & 15, pair >> 4 & 15], dim=2).reshape(pair.shape[0], -1) - 8
    return codes.to(torch.bfloat16)


def peers(case: Case, x: Tensors) -> Mapping[str, Callable[[], Any]]:
    """What torch and its libraries offer for the same operands."""
    if case.kind == "fp8":
        return {"vendor": lambda: scaled_product(x)}
    if case.kind == "matmul":
        return {"vendor": lambda: torch.matmul(x["a"], x["b"])}
    if case.kind == "linear_gelu":
        w, bias = x["w"], x["bias"]
        return {
            "torch": lambda: F.gelu(torch.addmm(bias, x["x"], w)),
            "torch one kernel, tanh": lambda: torch._addmm_activation(bias, x["x"], w, use_gelu=True),
            "vendor product alone": lambda: torch.matmul(x["x"], w),
        }
    if case.kind == "attention":
        q, k, v = (x[name][None] for name in "qkv")
        return {"torch": lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True)}
    if case.kind == "int4_matmul":
        codes, scale = _unpacked(x), x["s"].reshape(-1)
        return {
            "vendor product of unpacked weights": lambda: torch.matmul(x["x"], codes),
            "torch": lambda: torch.matmul(x["x"], _unpacked(x)) * scale,
            **_packed_product(x),
        }
    if case.kind == "grouped_matmul":
        ends = x["sizes"].cumsum(0).to(torch.int32)
        return {"torch": lambda: torch._grouped_mm(x["x"], x["w"], offs=ends)}
    source = x["x"]
    made = torch.empty_like(source)
    copy = {"device copy": lambda: made.copy_(source)}
    if case.kind == "softmax":
        return {**copy, "torch": lambda: torch.softmax(source, 1)}
    if case.kind == "rms_norm_quantise":
        part = source.view(-1)[: source.numel() // 4 * 3]
        target = torch.empty_like(part)
        return {**copy, "device copy of as many bytes": lambda: target.copy_(part)}
    return {**copy, "torch": lambda: F.rms_norm(source, (source.shape[1],), x["w"], 1e-6)}


def _packed_product(x: Tensors) -> Mapping[str, Callable[[], Any]]:
    """torch's own product with weights of four bits, scales by 128 of K; none where this build lacks it."""
    try:
        n, k = x["s"].numel(), x["x"].shape[1]
        codes = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8)
        packed = torch.ops.aten._convert_weight_to_int4pack(codes, 8)
        scales = torch.randn((k // 128, n, 2), dtype=torch.float32).to(torch.bfloat16)
        torch.ops.aten._weight_int4pack_mm(x["x"], packed, 128, scales)
    except (RuntimeError, NotImplementedError, AttributeError):
        return {}
    return {"torch, its own packing": lambda: torch.ops.aten._weight_int4pack_mm(x["x"], packed, 128, scales)}


class Bench:
    """Measures what ``done`` does not hold yet; ``say`` takes a line for each thing begun and done."""

    def __init__(self, plans: Path, say: Callable[[Json], None], done: Sequence[Json]) -> None:
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.set_default_device("cuda")
        self.plans, self.say = plans, say
        self.known = {(line["id"], line["shape"]): line for line in done if "us" in line or "error" in line}
        begun = {(line["at"], line["shape"]) for line in done if "at" in line}
        self.lost = begun - self.known.keys()
        self.finals = {(line["case"], line["shape"]) for line in done if "final" in line}
        self._kept: dict[tuple[str, str], tuple[Tensors, torch.Tensor, torch.Tensor]] = {}
        self.flush = torch.empty(FLUSH_BYTES // 4, dtype=torch.int32)
        name = torch.cuda.get_device_name()
        self.say(
            {"device": name, "torch": torch.__version__, "driver": torch.cuda.get_device_properties().name}
        )

    def run(self, case: Case, rows: Sequence[Json]) -> None:
        for shape in case.shapes:
            todo = [r for r in rows if (r["id"], shape) not in self.known]
            if not todo:
                continue
            x, where, wanted = self._prepared(case, shape)
            for row in todo:
                self._one(case, row, shape, x, where, wanted)
            del x, wanted
            torch.cuda.empty_cache()
        self._final(case, rows)

    def all_shapes(self, case: Case, row: Json) -> None:
        """One point on every shape, whose operands stay; the first that fails ends it."""
        for shape in case.shapes:
            place = (case.name, shape)
            if place not in self._kept:
                self._kept[place] = self._prepared(case, shape)
            self._one(case, row, shape, *self._kept[place])
            if "error" in self.known[row["id"], shape]:
                return

    def _prepared(self, case: Case, shape: str) -> tuple[Tensors, torch.Tensor, torch.Tensor]:
        """Operands, rows that are checked, and what they must be."""
        x = operands(case, shape)
        total = next(iter(case.shapes[shape][1].values()))[0][0]
        checked = min(CHECKED_ROWS, 4 if case.kind == "attention" else total)
        picked = torch.randperm(total, generator=torch.Generator("cuda").manual_seed(3))[: checked - 1]
        where = torch.cat([picked, torch.tensor([total - 1])])
        return x, where, answer(case, x, where)

    def final(self, case: Case, rows: Sequence[Json]) -> None:
        """Rows with their times, the peers beside them."""
        for row in rows:
            for shape, us in row["us"].items():
                self.known[row["id"], shape] = {"us": us}
        self._final(case, rows)

    def _one(
        self, case: Case, row: Json, shape: str, x: Tensors, where: torch.Tensor, wanted: torch.Tensor
    ) -> None:
        key = (row["id"], shape)
        line = {
            "id": row["id"],
            "case": case.name,
            "label": row["label"],
            "shape": shape,
            "params": row["params"],
        }
        if key in self.lost:
            self.say({**line, "error": "hung or died"})
            self.known[key] = {"error": "hung or died"}
            return
        self.say({"at": row["id"], "shape": shape})
        try:
            line |= self._found(row, shape, x, where, wanted)
        except RuntimeError as error:
            line["error"] = str(error).splitlines()[0][:200]
            self.say(line)
            torch.cuda.synchronize()  # raises where the context is lost: the next process goes on
        else:
            self.say(line)
        self.known[key] = line

    def _found(self, row: Json, shape: str, x: Tensors, where: torch.Tensor, wanted: torch.Tensor) -> Json:
        call, out = self._call(row["id"], shape, x)
        for buffer in out:
            buffer.fill_(0xFF)
        call()
        torch.cuda.synchronize()
        got = self._result(row["id"], shape, out)[where].float()
        noise = (got - wanted).square().sum().item()
        db = 10 * torch.log10(wanted.square().sum() / max(noise, 1e-30)).item()
        if not db >= LEAST_DB:
            return {"error": f"wrong: {db:.1f} dB"}
        return {"db": round(db, 1), "us": round(1e3 * statistics.median(self._times(call, 3)), 2)}

    def _call(self, name: str, shape: str, x: Tensors) -> tuple[Callable[[], None], list[torch.Tensor]]:
        plan = Plan.from_bytes((self.plans / f"{name}.{shape}.plan").read_bytes())
        buffers = [torch.empty(size, dtype=torch.uint8) for size in plan.buffers]
        ready = Ready(plan)
        addresses = [x[t.name].data_ptr() for t in plan.inputs] + [b.data_ptr() for b in buffers]
        return lambda: ready(addresses, torch.cuda.current_stream().cuda_stream), buffers

    def _result(self, name: str, shape: str, buffers: Sequence[torch.Tensor]) -> torch.Tensor:
        output = Plan.from_bytes((self.plans / f"{name}.{shape}.plan").read_bytes()).outputs[0]
        part = buffers[output.buffer][output.offset : output.offset + output.bytes]
        return part.view(getattr(torch, output.dtype)).view(output.shape)

    def _times(self, call: Callable[[], Any], count: int) -> list[float]:
        """Milliseconds of each of ``count`` calls."""
        pairs = []
        for _ in range(count):
            self.flush.zero_()
            torch.cuda._sleep(SPIN_CYCLES)
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            call()
            end.record()
            pairs.append((start, end))
        torch.cuda.synchronize()
        return [start.elapsed_time(end) for start, end in pairs]

    def _final(self, case: Case, rows: Sequence[Json]) -> None:
        """The fittest few of each label over all shapes, the best of each shape, and the peers, side by side."""
        if not rows:
            return
        logs: dict[str, float] = {}
        for row in rows:
            times = [self.known.get((row["id"], s), {}).get("us") for s in case.shapes]
            if all(times):
                logs[row["id"]] = statistics.geometric_mean(times)
        by_label: dict[str, list[str]] = defaultdict(list)
        for row in sorted(rows, key=lambda r: logs.get(r["id"], 1e9)):
            if row["id"] in logs:
                by_label[row["label"]].append(row["id"])
        few = [name for names in by_label.values() for name in names[:FINALISTS]]
        labels = {r["id"]: r["label"] for r in rows}
        for shape in case.shapes:
            if (case.name, shape) in self.finals:
                continue
            x = operands(case, shape)
            best = {}
            for label in by_label:
                here = [
                    (self.known[r["id"], shape]["us"], r["id"])
                    for r in rows
                    if r["label"] == label and self.known.get((r["id"], shape), {}).get("us")
                ]
                best[label] = min(here)[1]
            names = list(dict.fromkeys([*few, *best.values()]))
            calls: dict[str, Callable[[], Any]] = dict(peers(case, x))
            kept = []
            for name in names:
                calls[name], out = self._call(name, shape, x)
                kept.append(out)
            times: dict[str, list[float]] = defaultdict(list)
            failed = {}
            for turn in range(ROUNDS):
                for name in list(calls) if turn % 2 else list(calls)[::-1]:
                    try:
                        times[name] += self._times(calls[name], CALLS)
                    except RuntimeError as error:
                        failed[name] = str(error)[:200]
                        del calls[name]
            found = {name: round(1e3 * statistics.median(t), 2) for name, t in times.items()}
            self.say(
                {"final": found, "case": case.name, "shape": shape, "labels": labels_of(names, labels),
                 "best": best, "failed": failed, "work": case.work[shape], "unit": case.unit}
            )  # fmt: skip
            del x, kept
            torch.cuda.empty_cache()


def labels_of(names: Sequence[str], labels: Mapping[str, str]) -> Json:
    return {name: labels[name] for name in names}
