"""Runs Triton and Gluon candidates on one device: checks their answers and times them. Exclusive; one per GPU.

With an ``interpreted`` device the same runner works on the CPU through Triton's interpreter, for tests.

Jobs (all with ``entries`` [{id, source, params}]):
``check``: ``workloads`` [{id, inputs, outputs}], ``check`` [{workload, kinds}], arrays ``workload/kind/operand``.
    One ``checked`` per (workload, kind) with the outputs of the first entry.
``time``: ``workloads``, ``seed``, ``rounds``, ``calls``, ``pace`` {workload: seconds} (optional), arrays
    ``table/operand`` (see ``seeds.sampled``) or ``workload/operand``, and ``where/workload/output/axis``.
    One ``timed`` per workload: times of every entry in every round, host seconds, wall seconds, and what the
    outputs of one timed call of each entry hold at the places asked for.
Any job: ``alive`` frames in between, as signs of life; one ``error`` {phase, type, message, spoiled, entry} ends it.
"""

from __future__ import annotations

import os
import statistics
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import numpy as np
import torch
import triton

from tilewright.seeds.sampled import places, stream
from tilewright.workers.child.frames import Frame
from tilewright.workers.runners.device import ALIVE_SECONDS, Answer, DeviceRunner, far_behind
from tilewright.workers.runners.triton_clock import Clock, CpuClock, GpuClock
from tilewright.workers.runners.triton_common import (
    bits_of,
    checked_results,
    load_module,
    to_numpy,
    to_torch,
    torch_dtype,
)
from tilewright.workers.runners.triton_guard import (
    Canaries,
    LaunchGuard,
    OutsideWrite,
    leave_interpreter_unguarded,
)
from tilewright.workers.runners.triton_interpreter import repair as repair_interpreter

Tensors = dict[str, torch.Tensor]
Call = Callable[[], Any]

MODULES = 24
"""Candidates whose modules are kept."""

OPERAND_SETS = 2
"""Seeds whose operands stay on the device."""

PIECE = 1 << 26
"""Elements made at a time."""

_SPOILING = (
    "CUDA error",
    "CUDA driver error",
    "device-side assert",
    "out of memory",
    "illegal",
    "launch failure",
)


class Runner(DeviceRunner):
    """Serves ``check`` and ``time`` jobs. ``config``: ``product``, ``interpreted``, ``flush_bytes``.

    Raises RuntimeError for another device than the target's.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._device = "cpu" if config["interpreted"] else "cuda"
        torch.set_default_device(self._device)
        self.hello = {"torch": torch.__version__, "triton": triton.__version__, **self._describe(config)}
        self._clock: Clock = CpuClock() if config["interpreted"] else GpuClock(int(config["flush_bytes"]))
        self._modules: OrderedDict[str, ModuleType] = OrderedDict()
        self._operands: OrderedDict[int, dict[str, Tensors]] = OrderedDict()
        self._sums: dict[tuple[int, str], list[int]] = {}
        self._salt = int.from_bytes(os.urandom(4))
        self._said = time.monotonic()

    def _describe(self, config: Mapping[str, Any]) -> dict[str, Any]:
        if config["interpreted"]:
            # the CPU's allocator gives no memory a second time on demand: fresh memory is filled with NaN instead
            torch.use_deterministic_algorithms(True)
            leave_interpreter_unguarded()
            repair_interpreter()
            return {"device": config["product"]}
        name = torch.cuda.get_device_name()
        if config["product"] not in name:
            raise RuntimeError(f"the target is an {config['product']}, this GPU is an {name}")
        identity = str(torch.cuda.get_device_properties().uuid)
        return {"device": name, "cuda": str(torch.version.cuda), "identity": identity}

    def _spoiled(self, error: BaseException) -> bool:
        """Whether the context or other tensors may be damaged: an error says so, or the device does."""
        text = str(error)
        spoiling = torch.OutOfMemoryError | MemoryError | OutsideWrite
        if isinstance(error, spoiling) or any(word in text for word in _SPOILING):
            return True
        try:
            self._clock.synchronise()
        except RuntimeError:
            return True
        return False

    def _say_alive(self, answer: Answer) -> None:
        """A sign of life, at most one a second."""
        now = time.monotonic()
        if now - self._said > ALIVE_SECONDS:
            answer(Frame("alive"))
            self._said = now

    # -- candidates and operands -----------------------------------------------------------------

    def _call(self, entry: Mapping[str, Any], tensors: Tensors) -> Call:
        key = entry["source"]
        if key not in self._modules:
            self._modules[key] = load_module(entry["source"])
            while len(self._modules) > MODULES:
                self._modules.popitem(last=False)
        module, params = self._modules[key], entry["params"]
        self._modules.move_to_end(key)
        return lambda: module.launch(dict(tensors), dict(params))

    def _operands_of(self, job: Frame, workload: Mapping[str, Any]) -> Tensors:
        seed = int(job.data["seed"])
        sets = self._operands.setdefault(seed, {})
        self._operands.move_to_end(seed)
        while len(self._operands) > OPERAND_SETS:
            old, _ = self._operands.popitem(last=False)
            self._sums = {key: value for key, value in self._sums.items() if key[0] != old}
        name = workload["id"]
        if name not in sets:
            made = {}
            for spec in workload["inputs"]:
                table = job.arrays.get(f"table/{spec['name']}")
                if table is None:
                    made[spec["name"]] = to_torch(job.arrays[f"{name}/{spec['name']}"], self._device)
                else:
                    made[spec["name"]] = self._filled(spec, table, stream(seed, name, spec["name"]))
            sets[name] = made
            self._sums[seed, name] = _sums(made, self._salt)
        return sets[name]

    def _filled(self, spec: Mapping[str, Any], table: np.ndarray, key: int) -> torch.Tensor:
        values = to_torch(table, self._device)
        tensor = torch.empty(spec["shape"], dtype=torch_dtype(spec["dtype"]))
        flat = tensor.view(-1)
        bits = bits_of(tensor)
        for start in range(0, flat.numel(), PIECE):
            index = torch.arange(start, min(start + PIECE, flat.numel()))
            flat.view(bits)[start : start + PIECE] = values.view(bits)[places(index, key)]
        return tensor

    def _poison(self, workload: Mapping[str, Any]) -> None:
        """Leave NaN where the allocator will put the next outputs."""
        spoilt = [_nans(spec) for spec in workload["outputs"]]
        del spoilt

    # -- jobs ------------------------------------------------------------------------------------

    def _check(self, job: Frame, answer: Answer, state: dict[str, str]) -> None:
        workloads = {w["id"]: w for w in job.data["workloads"]}
        for item in job.data["check"]:
            workload = workloads[item["workload"]]
            for kind in item["kinds"]:
                prefix = f"{workload['id']}/{kind}/"
                given = {s["name"]: job.arrays[prefix + s["name"]] for s in workload["inputs"]}
                canaries = Canaries()
                tensors = {
                    name: canaries.copy(to_torch(array, self._device)) for name, array in given.items()
                }
                call = self._call(job.data["entries"][0], tensors)
                state["phase"] = "launch"
                before = _sums(tensors, self._salt)
                results = self._guarded(call, workload, canaries)
                outputs = {name: to_numpy(tensor) for name, tensor in results.items()}
                changed = _sums(tensors, self._salt) != before
                data = {"workload": workload["id"], "kind": kind, "inputs_changed": changed}
                answer(Frame("checked", data, arrays=outputs))

    def _guarded(self, call: Call, workload: Mapping[str, Any], canaries: Canaries) -> Tensors:
        """The results of one call that computes in kernels only, and writes only to what it makes."""
        self._poison(workload)
        with LaunchGuard(canaries):
            made = call()
        results = checked_results(made, workload["outputs"])
        self._clock.synchronise()
        canaries.inspect()
        return results

    def _time(self, job: Frame, answer: Answer, state: dict[str, str]) -> None:
        entries, pace = job.data["entries"], job.data.get("pace") or {}
        behind: list[float] = []
        for workload in job.data["workloads"]:
            tensors = self._operands_of(job, workload)
            name = workload["id"]
            calls = [self._call(entry, tensors) for entry in entries]
            state["phase"] = "launch"
            timed = self._workload(job, workload, calls, state, far_behind(behind), answer)
            if name in pace:
                behind.append(statistics.median(timed.data["rounds"][0][0]) / float(pace[name]))
            changed = _sums(tensors, self._salt) != self._sums[int(job.data["seed"]), name]
            if changed:
                self._operands.clear()
            answer(Frame("timed", {**timed.data, "inputs_changed": changed}, arrays=timed.arrays))

    def _workload(
        self,
        job: Frame,
        workload: Mapping[str, Any],
        calls: list[Call],
        state: dict[str, str],
        brief: bool,
        answer: Answer,
    ) -> Frame:
        """Interleaved rounds, order reversed each time, then the outputs of a call that was timed."""
        rounds, count = (1, 1) if brief else (int(job.data["rounds"]), int(job.data["calls"]))
        entries = job.data["entries"]
        times: list[list[list[float]]] = [[] for _ in calls]
        host, wall, arrays = [0.0] * len(calls), [0.0] * len(calls), {}
        for place, call in enumerate(calls):
            state["entry"] = entries[place]["id"]
            self._guarded(call, workload, Canaries())
            self._say_alive(answer)
        for number in range(rounds):
            last = number == rounds - 1
            order = range(len(calls)) if number % 2 == 0 else range(len(calls) - 1, -1, -1)
            for place in order:
                state["entry"] = entries[place]["id"]
                if last:
                    self._poison(workload)
                found, results = self._clock.burst(calls[place], count)
                times[place].append(found)
                self._say_alive(answer)
                if last:
                    outputs = checked_results(results, workload["outputs"])
                    arrays.update(_sampled(job, workload, outputs, place))
                    del results, outputs
                    host[place], wall[place] = self._clock.overheads(calls[place], brief)
        data = {
            "workload": workload["id"],
            "rounds": times,
            "host_seconds": host,
            "wall_seconds": wall,
            "brief": brief,
        }
        return Frame("timed", data, arrays=arrays)


def _sums(tensors: Tensors, salt: int) -> list[int]:
    """A checksum of each tensor's bits that depends on their places, in a way only ``salt`` tells."""
    return [_sum(tensor.view(-1).view(torch.uint8), salt) for tensor in tensors.values()]


def _sum(octets: torch.Tensor, salt: int) -> int:
    words = octets.view(torch.int64) if octets.numel() % 8 == 0 else octets
    total = 0
    for start in range(0, words.numel(), PIECE):
        piece = words[start : start + PIECE]
        weights = torch.arange(start, start + piece.numel(), device=piece.device) + salt
        total += int((piece.to(torch.int64) * weights * weights).sum())
    return total


def _nans(spec: Mapping[str, Any]) -> torch.Tensor:
    """An output's memory, every byte 0xff: NaN in every float type."""
    tensor = torch.empty(spec["shape"], dtype=torch_dtype(spec["dtype"]))
    tensor.view(torch.uint8).fill_(0xFF)
    return tensor


def _sampled(job: Frame, workload: Mapping[str, Any], outputs: Tensors, place: int) -> dict[str, np.ndarray]:
    """``place/output``: an output's values where the job asks, or all of them where it does not."""
    found = {}
    for name, output in outputs.items():
        axis, tensor = 0, output.view(bits_of(output))
        while (where := job.arrays.get(f"where/{workload['id']}/{name}/{axis}")) is not None:
            tensor = tensor.index_select(axis, torch.from_numpy(where.copy()).to(tensor.device))
            axis += 1
        found[f"{place}/{name}"] = to_numpy(tensor.view(output.dtype))
    return found
