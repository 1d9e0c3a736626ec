"""Runs Pallas candidates on one TPU core: checks their answers and times them. Exclusive; one per chip.

With an ``interpreted`` chip the same runner works on the CPU through Pallas' interpreter, for tests.

No candidate's Python comes here: entries are {id}, with a blob ``plan/entry/workload`` for each workload, the data that
its Python traced to in another process (``workers.device.kernel_traces``). What is checked and timed is that, compiled
under a name of ours. Jobs and answers are those of ``workers.runners.triton.torch_runner``.
"""

import contextlib
import hashlib
import importlib.metadata
import itertools
import statistics
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas import tpu as pltpu
from jax.extend.core import jaxpr_as_fun

from tilewright.seeds.sampled import is_whole, places, stream
from tilewright.workers.child.frames import Frame, FrameReader
from tilewright.workers.child.heartbeat import heartbeat
from tilewright.workers.runners.device_runner import (
    ALIVE_SECONDS,
    Answer,
    DeviceRunner,
    far_behind,
    operand_tables,
    sent_array,
)
from tilewright.workers.runners.pallas.check import artefact_of, interpret
from tilewright.workers.runners.pallas.clock import Clock, ProfilerClock, Program, WallClock, overheads
from tilewright.workers.runners.pallas.jaxpr_codec import decode
from tilewright.workers.runners.pallas.trace import check_form, mesh_of

PROGRAMS = 64
"""Compiled programs that are kept, for one candidate and one shape each."""


class Runner(DeviceRunner):
    """Serves ``check`` and ``time`` jobs. ``config``: ``kind`` and ``cores`` of the chip, ``interpreted``.

    Raises RuntimeError for another device than the target's.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._chip = {"kind": config["kind"], "cores": config["cores"]}
        self._interpreted = bool(config["interpreted"])
        found = jax.devices()[0].device_kind
        if not self._interpreted and found != config["kind"]:
            raise RuntimeError(f"the target is a {config['kind']}, this device is a {found}")
        self.hello = {"device": config["kind"], **{n: importlib.metadata.version(n) for n in ("jax", "libtpu")}}
        self._clock: Clock = WallClock() if self._interpreted else ProfilerClock()
        self._programs: OrderedDict[tuple[str, str], Program] = OrderedDict()
        self._numbers = itertools.count()

    def _spoiled(self, error: BaseException) -> bool:
        return isinstance(error, jax.errors.JaxRuntimeError | MemoryError)

    def _program(
        self, job: Frame, entry: Mapping[str, Any], workload: Mapping[str, Any], answer: Answer, state: dict[str, str]
    ) -> Program:
        plan = job.blobs[f"plan/{entry['id']}/{workload['id']}"]
        key = (hashlib.sha256(plan).hexdigest(), workload["id"])
        if key not in self._programs:
            state.update(phase="compile", entry=entry["id"])
            alive = heartbeat(ALIVE_SECONDS, lambda: answer(Frame("alive")))  # a compiler says nothing
            with mesh_of(self._chip) if self._interpreted else contextlib.nullcontext(), alive:
                (frame,) = FrameReader(len(plan)).feed(plan)
                jaxpr = decode(artefact_of(frame.blobs["text"], frame.arrays))
                check_form(jaxpr, workload)
                self._programs[key] = self._program_of(jaxpr)
            while len(self._programs) > PROGRAMS:
                self._programs.popitem(last=False)
        self._programs.move_to_end(key)
        state["phase"] = "launch"
        return self._programs[key]

    def _program_of(self, jaxpr: Any) -> Program:
        traced, settings = jaxpr_as_fun(jaxpr), pltpu.InterpretParams()

        def program(*operands: Any) -> Any:
            return interpret(jaxpr, operands, settings) if self._interpreted else traced(*operands)

        program.__name__ = f"candidate_{next(self._numbers)}"
        specs = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in jaxpr.in_avals]
        return Program(program.__name__, jax.jit(program).lower(*specs).compile())

    def _check(self, job: Frame, answer: Answer, state: dict[str, str]) -> None:
        workloads = {w["id"]: w for w in job.data["workloads"]}
        for item in job.data["check"]:
            workload = workloads[item["workload"]]
            program = self._program(job, job.data["entries"][0], workload, answer, state)
            for kind in item["kinds"]:
                prefix = f"{workload['id']}/{kind}/"
                operands = [jax.device_put(job.arrays[prefix + s["name"]]) for s in workload["inputs"]]
                results = jax.block_until_ready(program.call(*operands))
                outputs = {s["name"]: np.asarray(r) for s, r in zip(workload["outputs"], results, strict=True)}
                # a traced program gets its operands by value
                data = {"workload": workload["id"], "kind": kind, "inputs_changed": False}
                answer(Frame("checked", data, arrays=outputs))

    def _time(self, job: Frame, answer: Answer, state: dict[str, str]) -> None:
        entries, pace = job.data["entries"], job.data.get("pace") or {}
        behind: list[float] = []
        for workload in job.data["workloads"]:
            programs = [self._program(job, entry, workload, answer, state) for entry in entries]
            operands = _operands(job, workload)
            timed = self._workload(job, workload, programs, operands, state, far_behind(behind), answer)
            arrays = dict(timed.arrays)
            for kind in job.data.get("kinds", {}).get(workload["id"], ()):
                others = _operands(job, workload, kind)
                for place, program in enumerate(programs):
                    state["entry"] = entries[place]["id"]
                    results = jax.block_until_ready(program.call(*others))
                    arrays.update(_sampled(job, workload, results, place, kind))
                    answer(Frame("alive"))
            if workload["id"] in pace:
                first = statistics.median(timed.data["rounds"][0][0])
                behind.append(first / float(pace[workload["id"]]))
            answer(Frame("timed", timed.data, arrays=arrays))

    def _workload(
        self,
        job: Frame,
        workload: Mapping[str, Any],
        programs: Sequence[Program],
        operands: Sequence[jax.Array],
        state: dict[str, str],
        brief: bool,
        answer: Answer,
    ) -> Frame:
        """Interleaved rounds, order reversed each time, then the outputs of a call that was timed."""
        rounds, count = (1, 1) if brief else (int(job.data["rounds"]), int(job.data["calls"]))
        times: list[list[list[float]]] = [[] for _ in programs]
        host, wall, arrays = [0.0] * len(programs), [0.0] * len(programs), {}
        for number in range(rounds):
            order = range(len(programs)) if number % 2 == 0 else range(len(programs) - 1, -1, -1)
            for place in order:
                state["entry"] = job.data["entries"][place]["id"]
                found, results = self._clock.burst(programs[place], operands, count)
                times[place].append(found)
                answer(Frame("alive"))
                if number == rounds - 1:
                    arrays.update(_sampled(job, workload, results, place))
                    host[place], wall[place] = overheads(programs[place], operands, brief)
        data = {
            "workload": workload["id"],
            "rounds": times,
            "host_seconds": host,
            "wall_seconds": wall,
            "brief": brief,
            "inputs_changed": False,
        }
        return Frame("timed", data, arrays=arrays)


def _operands(job: Frame, workload: Mapping[str, Any], kind: str = "") -> list[jax.Array]:
    """Made on the device from a table where the operator has one (see ``seeds.sampled``), else sent."""
    made, tables = [], operand_tables(job, kind)
    for spec in workload["inputs"]:
        table = tables.get(name := spec["name"])
        if table is None:
            table = sent_array(job, workload["id"], kind, name)
            if is_whole(table, spec["shape"]):
                made.append(jax.device_put(table))
                continue
        with jax.enable_x64(True):  # the hash wants products of 64 bits
            index = jnp.arange(int(np.prod(spec["shape"])), dtype=jnp.int64)
            found = places(index, stream(int(job.data["seed"]), workload["id"], name))
            made.append(jnp.take(jax.device_put(table), found.astype(jnp.int32)).reshape(spec["shape"]))
    return jax.block_until_ready(made)


def _sampled(
    job: Frame, workload: Mapping[str, Any], results: Sequence[jax.Array], place: int, kind: str = ""
) -> dict[str, np.ndarray]:
    """``place/output``: an output's values where the job asks, or all of them where it does not."""
    found = {}
    for spec, result in zip(workload["outputs"], results, strict=True):
        axes: list[np.ndarray] = []
        array = np.asarray(result)
        while (where := job.arrays.get(f"where/{workload['id']}/{spec['name']}/{len(axes)}")) is not None:
            axes.append(where)
        name = f"{kind}/{spec['name']}" if kind else spec["name"]
        found[f"{place}/{name}"] = np.ascontiguousarray(array[np.ix_(*axes)] if axes else array)
    return found
