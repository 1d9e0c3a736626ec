"""What the runners of measured torch devices share: jobs, rounds, and what is read of the timed calls' outputs.

Jobs (all with ``entries`` [{id, ...}]):
``check``: ``workloads`` [{id, inputs, outputs}], ``check`` [{workload, kinds}], arrays ``workload/kind/operand``.
    One ``checked`` per (workload, kind) with the outputs of the first entry.
``time``: ``workloads``, ``seed``, ``rounds``, ``calls``, ``calls_of`` {workload: calls} (optional, instead of
    ``calls``), ``pace`` {workload: seconds} (optional), ``kinds`` {workload: [kind]} (optional), arrays
    ``table/operand`` of ``tables`` [operand] (see ``seeds.sampled``) or ``workload/operand``, and
    ``where/workload/output/axis``; for each kind ``workload/kind/operand``, on which every entry is called once before
    it is timed.
    One ``timed`` per workload: times of every entry in every round, host seconds, wall seconds, and what the
    outputs of one timed call of each entry hold at the places asked for.
Any job: ``alive`` frames in between, as signs of life; one ``error`` {phase, type, message, spoiled, entry} ends it.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch

from tilewright.workers.child.frames import Frame
from tilewright.workers.runners.device_runner import ALIVE_SECONDS, Answer, DeviceRunner, far_behind
from tilewright.workers.runners.triton.clock import LONG_SECONDS, Clock, nothing
from tilewright.workers.runners.triton.launch_guard import Canaries, OutsideWrite, poisons
from tilewright.workers.runners.triton.tensors import Checksums, Operands, Sampler, Tensors, to_arrays, to_torch

_SPOILING = ("CUDA error", "device-side assert", "out of memory", "illegal", "launch failure")


class Call(Protocol):
    """A candidate on one workload's operands."""

    def guarded(self, canaries: Canaries, rest: Callable[[], object] = nothing) -> Tensors:
        """The results of one call, once the device is done with it, if it wrote only to what it makes.

        ``canaries`` lie around its operands. ``rest`` comes between preparing the call and making it. Raises
        OutsideWrite, and whatever the candidate may raise.
        """
        ...

    def prepare(self) -> None:
        """Queue what must precede a call that counts."""
        ...

    def inspect(self) -> None:
        """Once the device is done with such a call. Raises OutsideWrite."""
        ...

    def __call__(self) -> Any:
        """Queue one call: its raw results."""
        ...

    def results(self, made: Any) -> Tensors:
        """What a call returned, by output."""
        ...


class TorchDevice(DeviceRunner):
    """``device`` as torch calls it. A subclass says how an entry becomes a ``Call``."""

    def __init__(self, device: str, clock: Clock) -> None:
        self._device = device
        self._clock = clock
        self._operands = Operands(device)
        self._checksums = Checksums(device)
        self._said = time.monotonic()
        self._kept: list[torch.Tensor] = []

    def _keep(self, canaries: Canaries, outputs: Tensors) -> None:
        """For a device whose memory does not lie where it did: what was made last, results and scratch."""
        if self._device == "cpu":
            self._kept = [*canaries.made, *outputs.values()]

    def _call(self, job: Frame, entry: Mapping[str, Any], workload: Mapping[str, Any], tensors: Tensors) -> Call:
        raise NotImplementedError

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

    def _check(self, job: Frame, answer: Answer, state: dict[str, str]) -> None:
        workloads = {w["id"]: w for w in job.data["workloads"]}
        for item in job.data["check"]:
            workload = workloads[item["workload"]]
            for kind, fill in zip(item["kinds"], poisons(len(item["kinds"])), strict=True):
                prefix = f"{workload['id']}/{kind}/"
                given = {s["name"]: job.arrays[prefix + s["name"]] for s in workload["inputs"]}
                canaries = Canaries(fill, self._kept)
                tensors: Tensors = {}
                alike: dict[Any, str] = {}  # what is equal lies in the same memory, as it may in a call
                for name, array in given.items():
                    first = alike.setdefault((array.dtype.name, array.shape, array.tobytes()), name)
                    known = tensors.get(first)
                    tensors[name] = canaries.copy(to_torch(array, self._device)) if known is None else known
                call = self._call(job, job.data["entries"][0], workload, tensors)
                state["phase"] = "launch"
                before = self._checksums.of(tensors)
                made = call.guarded(canaries)
                outputs = to_arrays(made)
                self._keep(canaries, made)
                changed = self._checksums.of(tensors) != before
                data = {"workload": workload["id"], "kind": kind, "inputs_changed": changed}
                answer(Frame("checked", data, arrays=outputs))

    def _time(self, job: Frame, answer: Answer, state: dict[str, str]) -> None:
        entries, pace, seed = job.data["entries"], job.data.get("pace") or {}, int(job.data["seed"])
        behind: list[float] = []
        timed: dict[str, Frame] = {}
        for workload in job.data["workloads"]:
            tensors, name = self._operands.of(job, workload), workload["id"]
            calls = [self._call(job, entry, workload, tensors) for entry in entries]
            state["phase"] = "launch"
            timed[name] = self._workload(job, workload, calls, state, far_behind(behind), answer)
            if name in pace:
                behind.append(statistics.median(timed[name].data["rounds"][0][0]) / float(pace[name]))
        changed = self._operands.changed()  # once: all that is kept is looked at here anyway
        if any(one[0] != seed or one[1] not in timed for one in changed):
            raise OutsideWrite("a kernel writes to operands of other workloads")
        for name, frame in timed.items():
            data = {**frame.data, "inputs_changed": name in {one[1] for one in changed}}
            answer(Frame("timed", data, arrays=frame.arrays))

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
        most = int(job.data.get("calls_of", {}).get(workload["id"], job.data["calls"]))
        rounds, count = (1, 1) if brief else (int(job.data["rounds"]), most)
        entries, sampler = job.data["entries"], Sampler(job, workload, self._device)
        times: list[list[list[float]]] = [[] for _ in calls]
        host, wall, seen = [0.0] * len(calls), [0.0] * len(calls), {}
        kinds = job.data.get("kinds", {}).get(workload["id"], ())
        for place, call in enumerate(calls):
            state["entry"] = entries[place]["id"]
            for kind, fill in zip(kinds, poisons(len(kinds)), strict=True):
                # while what was timed last no longer heats the device
                tensors = self._operands.of(job, workload, kind)
                canaries = Canaries(fill, self._kept)
                outputs = self._call(job, entries[place], workload, tensors).guarded(canaries)
                seen.update({f"{place}/{kind}/{name}": v for name, v in sampler.values(outputs).items()})
                self._keep(canaries, outputs)
            if not kinds:
                call.guarded(Canaries(), self._clock.rest if place == 0 else nothing)
            self._say_alive(answer)
        for number in range(rounds):
            order = range(len(calls)) if number % 2 == 0 else range(len(calls) - 1, -1, -1)
            for place in order:
                state["entry"] = entries[place]["id"]
                call, met = calls[place], times[place]
                warm = met[-1][-1] >= LONG_SECONDS if met else len(calls) == 1  # by its guarded call
                burst = self._clock.burst(call, count, call.prepare, _keeper(sampler, call), warm)
                met.append(burst.seconds)
                self._say_alive(answer)
                if number == rounds - 1:
                    call.inspect()
                    seen.update({f"{place}/{name}": value for name, value in burst.kept.items()})
                    host[place], wall[place] = burst.host, burst.wall
        data = {"workload": workload["id"], "rounds": times, "host_seconds": host, "wall_seconds": wall, "brief": brief}
        return Frame("timed", data, arrays=to_arrays(seen))


def _keeper(sampler: Sampler, call: Call) -> Callable[[Any], Tensors]:
    return lambda made: sampler.values(call.results(made))
