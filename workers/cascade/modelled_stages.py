"""The stages of the modelled-TPU cascade, in the order they run: trace and check, compile, measure."""

import dataclasses
import math
import re
from collections.abc import Sequence
from signal import Signals

from tilewright.fitness import gates, score
from tilewright.fitness.evaluation import Stage, Verdict, WorkloadFigures
from tilewright.fitness.tpu import simulation, structure, time_model
from tilewright.fitness.tpu.llo import ParseError
from tilewright.seeds.operator import Arrays, BesideKernels, Workload
from tilewright.workers.cascade.common_stages import dealt_kinds
from tilewright.workers.child.ending import ChildOutcome, Ending
from tilewright.workers.child.frames import Frame
from tilewright.workers.child.run_once import ChildLimits, run_child
from tilewright.workers.device.kernel_traces import chip_of, run_pallas_child, trace_kernels
from tilewright.workers.device.timing import MALFORMED, malformed_answer
from tilewright.workers.request import Failure, Findings, Request, artefact_hash, duplicate, one_line
from tilewright.workers.toolchains import libtpu_simulator

LARGE_KINDS = 2
"""Number of kinds of inputs on a large shape, except for a finalist."""

_RESOURCES = re.compile(
    r"RESOURCE_EXHAUSTED|Ran out of memory|exceed(s|ed)? (vmem|smem|memory)|VmemOom|bad_alloc", re.I
)
_GRID = re.compile(rb'"GridMapping","v":\{"grid":\{"t":\[([\d,]+)\]')  # in an artefact's text
_OVER = re.compile(
    r"memory space (?P<space>\w+)(?s:.*?)(?:Used (\S+) of|Scoped allocation with size (\S+) and limit) (?P<limit>\S+) "
)
"""libtpu's words on blocks that are too large: memory space, bytes used, bytes there are."""
_BRANCHED = re.compile("LLO profiling of .*(No DMA issue node found|when the FIFO is full)")
"""libtpu's words where its simulator ran code that a branch skips."""
_SIMULATOR = re.compile(r"LLO profiling of \S+ failed: (?:[A-Z_]+: )?(.*)")
"""libtpu's words on why its simulator ended."""


class TraceStage:
    """Stage that traces the candidate's Python in one child, and lowers the trace in another."""

    stage = Stage.COMPILE

    def __init__(self, *, checks: bool) -> None:
        """``checks``: whether the second child also runs the trace on the gates' inputs, where most wrong ones fail."""
        self._checks = checks

    def run(self, request: Request, found: Findings) -> Failure | None:
        """The first failure; each answer is judged as it arrives, and a failure stops the child."""
        return trace(request, found) or check(request, found, gates=self._checks)


class CheckStage:
    """Stage that passes the gates on a trace that was lowered and timed before."""

    stage = Stage.CHECK

    def run(self, request: Request, found: Findings) -> Failure | None:
        """The first failure; the gates run in a child of their own."""
        return check(request, found)


def trace(request: Request, found: Findings) -> Failure | None:
    """Run the candidate's Python for those of its workloads that are not traced yet. The child sees no array."""
    missing = [w for w in _workloads(request) if w.id not in found.traced]
    if not missing:
        return None
    traced = trace_kernels(request, missing, request.launcher, request.folder)
    assert traced.outcome is not None
    found.traced.update(traced.frames)
    found.logs.append(traced.outcome.log)
    if traced.error is not None:
        phase = "import" if traced.error.data.get("phase") == "import" else "trace"
        return _candidate_failure(_with_phase(traced.error, phase))
    failure = _child_failure(traced.outcome, "tracing")
    if failure is None and any(w.id not in found.traced for w in missing):
        return Failure(Verdict.CRASHED, "the child ended before it had answered everything")
    return failure


def check(request: Request, found: Findings, *, gates: bool = True) -> Failure | None:
    """Lower what was traced and run it on the gates' inputs, in a child that never held the candidate's Python.

    Without ``gates`` it is lowered alone.
    """
    conversation = _Conversation(request, found, request.checked if gates else ())
    outcome = run_pallas_child(conversation.job(), request, request.launcher, request.folder, conversation.hear)
    found.logs.append(outcome.log)
    if conversation.failure is not None:
        return conversation.failure
    failure = _child_failure(outcome, "checking") or conversation.incomplete()
    if failure is not None and failure.verdict is Verdict.TIMEOUT:
        grids = [_GRID.findall(found.traced[w.id].blobs["text"]) for w in request.checked]
        steps = max((math.prod(map(int, g.split(b","))) for some in grids for g in some), default=0)
        why = f"{failure.reason}; JAX's interpreter runs each of the {steps} steps of its grid"
        failure = dataclasses.replace(failure, reason=one_line(why))
    return failure


def _workloads(request: Request) -> list[Workload]:
    return list({w.id: w for w in (*request.checked, *request.measured)}.values())


def _with_phase(frame: Frame, phase: str) -> Frame:
    """A child's error with the phase that the parent knows, whatever phase the child names."""
    fields = {name: str(frame.data.get(name, "")) for name in ("type", "message", "trace")}
    return Frame("error", {**fields, "phase": phase})


class _Conversation:
    """Reader of a check child's frames; judges them in the parent."""

    def __init__(self, request: Request, found: Findings, asked: Sequence[Workload]) -> None:
        """``asked``: the checked shapes on which the gates are passed."""
        self.failure: Failure | None = None
        self._request, self._asked = request, asked
        self._found = found
        self._inputs: dict[tuple[str, str], Arrays] = {}
        self._checked: set[tuple[str, str]] = set()
        self._workloads = {w.id: w for w in _workloads(request)}
        for position, workload in enumerate(asked):
            for kind in _kinds(request, position):
                made = request.truth.inputs(workload, request.seed, kind)
                self._inputs[workload.id, kind] = made

    def job(self) -> Frame:
        """The child's job; a workload that is traced already is lowered once."""
        request, found = self._request, self._found
        arrays = {
            f"{workload}/{kind}/{name}": array
            for (workload, kind), held in self._inputs.items()
            for name, array in held.items()
        }
        for name, outputs in request.sampled.items():
            for output, axes in outputs.items():
                arrays.update({f"where/{name}/{output}/{n}": axis for n, axis in enumerate(axes)})
        for name in self._workloads:
            arrays.update({f"constant/{name}/{n}": a for n, a in found.traced[name].arrays.items()})
        data = {
            "chip": chip_of(request),
            "workloads": [request.described(w) for w in self._workloads.values()],
            "lower": [name for name in self._workloads if name not in found.modules],
            "check": [
                {
                    "workload": w.id,
                    "kinds": [kind for name, kind in self._inputs if name == w.id],
                    "sampled": w.id in request.sampled,
                    "whole": list(request.whole_axes.get(w.id, ())),
                    "both": request.final,
                }
                for w in self._asked
            ],
        }
        texts = {name: found.traced[name].blobs["text"] for name in self._workloads}
        return Frame("pallas.check", data, arrays, texts)

    def hear(self, frame: Frame) -> bool:
        """Judge one frame; False ends the child."""
        try:
            if frame.kind == "traced":
                self.failure = self._traced(frame)
            elif frame.kind == "checked":
                self.failure = self._check(frame)
            elif frame.kind == "error":
                self.failure = _candidate_failure(frame)
        except MALFORMED as error:
            self.failure = malformed_answer(error)
        return self.failure is None

    def incomplete(self) -> Failure | None:
        """The failure of a child that ended well and did not answer everything; None where it did."""
        missing = set(self._workloads) - set(self._found.modules)
        unchecked = set(self._inputs) - self._checked
        if missing or unchecked:
            return Failure(Verdict.CRASHED, "the child ended before it had answered everything")
        return None

    def _traced(self, frame: Frame) -> Failure | None:
        name = self._workloads[frame.data["workload"]].id
        found = self._found
        found.modules[name] = frame.blobs["module"]
        found.conventions[name] = int(frame.data["calling_convention"])
        found.claimed[name] = str(frame.data["fingerprint"])
        found.sources[name] = str(frame.data["artefact"])
        if set(found.modules) != set(self._workloads):
            return None
        artefact = artefact_hash({w.id: found.claimed[w.id] for w in self._request.measured})
        failure = duplicate(self._request, artefact)
        found.artefact = artefact if failure else None
        return failure

    def _check(self, frame: Frame) -> Failure | None:
        workload = self._workloads[frame.data["workload"]]
        kind = str(frame.data["kind"])
        if (workload.id, kind) not in self._inputs:
            raise ValueError(f"{workload.id} was not asked on {kind}")
        operator = self._request.operator
        where = Stage.CHECK
        if frame.data["races"]:
            return Failure(Verdict.INCORRECT, f"a data race in the kernel on {kind} inputs", stage=where)
        truth, seed, outputs = self._request.truth, self._request.seed, operator.outputs(workload)
        places = self._request.sampled.get(workload.id)
        if places is not None:
            outputs = tuple(dataclasses.replace(o, shape=tuple(map(len, places[o.name]))) for o in outputs)
        if (fault := gates.ill_formed(frame.arrays, outputs)) is not None:
            return Failure(Verdict.INCORRECT, fault, stage=where)
        references = (
            truth.references(workload, seed, kind)
            if places is None
            else truth.references_at(workload, seed, kind, places)
        )
        label = kind if workload not in self._request.large_checks else f"{kind} at {workload.id}"
        readings = gates.read_gates(operator.gates, frame.arrays, references, label)
        noted = {"artefact": frame.data["artefact"], "workload": workload.id, "sampled": places is not None}
        self._found.gates.extend(r.model_copy(update=noted) for r in readings)
        self._checked.add((workload.id, kind))
        if (wrong := gates.failure(readings, operator.gates)) is not None:
            return Failure(Verdict.INCORRECT, wrong, stage=where)
        return None


class CompileStage:
    """Stage that compiles and simulates traces in a child that never sees the candidate's Python."""

    stage = Stage.COMPILE

    def __init__(self, *, compiles: bool = True) -> None:
        """``compiles``: False where a device compiles the modules, and their structure alone is judged here."""
        self._compiles = compiles

    def run(self, request: Request, found: Findings) -> Failure | None:
        """Judges the modules' structure before they are compiled, then keeps the dumps' folders.

        Where the simulator aborts on a branch, that workload is compiled again with delays (``mosaic.branch_delays``).
        """
        left = [w.id for w in request.measured]
        failure = self._run(request, found, left)
        while failure is not None and _BRANCHED.search(failure.log):
            failure = self._run(request, found, [left.pop(0)], delays=True)
            if failure is not None or not left:
                break
            failure = self._run(request, found, left)
        return failure

    def _run(self, request: Request, found: Findings, left: list[str], *, delays: bool = False) -> Failure | None:
        """Compile workloads by id and take those that are done off ``left``."""
        folder = request.folder / f"compile{len(found.logs)}"  # a race compiles some workloads at a time
        folder.mkdir()
        environment = libtpu_simulator.compile_environment(folder, delays=delays)
        refused: list[Failure] = []

        def hear(frame: Frame) -> bool:
            if frame.kind == "facts":
                failure = self._judge(request, found, frame)
                refused.extend([failure] if failure else [])
            elif frame.kind == "compiled":
                found.dumps[frame.data["workload"]] = folder / frame.data["folder"]
                left[:] = [name for name in left if name != frame.data["workload"]]
            elif frame.kind == "error":
                refused.append(_candidate_failure(frame))
            return not refused

        limits = _scaled_limits(request.limits.compile, request.time_factor)
        outcome = run_child(
            _compile_job(request, found, left if self._compiles else [], delays),
            limits,
            folder,
            extra_environment=environment,
            on_frame=hear,
            launcher=request.launcher,
        )
        found.logs.append(outcome.log)
        if refused:
            return refused[0]
        return _compiler_failure(outcome, limits)

    def _judge(self, request: Request, found: Findings, frame: Frame) -> Failure | None:
        facts = structure.ModuleFacts.from_data(frame.data)
        workload = next(w for w in (*request.measured, *request.checked) if w.id == frame.data["workload"])
        found.facts[workload.id] = facts
        if facts.fingerprint != found.claimed[workload.id]:
            return Failure(Verdict.INFRA_ERROR, f"{workload.id}: another module is compiled than was checked")
        operands = [spec.name for spec in request.inputs(workload)]
        results = [spec.name for spec in request.operator.outputs(workload)]
        beside = _operations_beside(request)
        if workload not in request.measured and structure.timed_alone(beside):
            beside |= {structure.ALONE + facts.around}  # no time is taken there
        if (reason := structure.objection(facts, operands, results, beside)) is not None:
            return Failure(Verdict.IMPLAUSIBLE, reason)
        products = score.product_flops(request.operator, workload)
        if (reason := structure.missing_work(facts, products)) is not None:
            return Failure(Verdict.IMPLAUSIBLE, f"{workload.id}: {reason}")
        fingerprints = {w.id: found.facts[w.id].fingerprint for w in request.measured if w.id in found.facts}
        if len(fingerprints) == len(request.measured) and found.artefact is None:
            found.artefact = artefact_hash(fingerprints)
            return duplicate(request, found.artefact)
        return None


class MeasureStage:
    """Stage that turns the simulator's dumps into figures; a failure where these cannot be true."""

    stage = Stage.MEASURE

    def run(self, request: Request, found: Findings) -> Failure | None:
        """The first failure, over one workload after the other."""
        for workload in request.measured:
            if workload.id not in found.dumps:
                return Failure(Verdict.INFRA_ERROR, f"no dump of workload {workload.id} was made")
            try:
                failure = self._measure(request, found, workload)
            except ParseError as error:
                return Failure(Verdict.COMPILE_ERROR, f"the simulator's dump of {workload.id}: {error}")
            if failure is not None:
                return failure
        return None

    def _measure(self, request: Request, found: Findings, workload: Workload) -> Failure | None:
        chip, operator = request.target.chip, request.operator
        run = simulation.read_dumps(found.dumps[workload.id], chip)
        time = simulation.modelled_time(run, chip)
        flops, size = operator.flops(workload), request.compulsory_bytes(workload)
        reason = simulation.implausible(
            run,
            chip,
            flops=flops,
            products=score.product_flops(operator, workload),
            compulsory_bytes=size,
            time=time.seconds,
        )
        if reason is not None:
            return Failure(Verdict.IMPLAUSIBLE, f"{workload.id}: {reason}")
        kind = score.matrix_kind(request.operator, request.inputs(workload))
        found.figures.append(
            WorkloadFigures(
                workload=workload.id,
                seconds=time.seconds,
                tflops=score.tflops(flops, time.seconds),
                gbytes=score.gbytes(size, time.seconds) if score.bytes_rank(operator) else None,
                roofline_fraction=score.roofline_seconds(flops, size, chip, kind) / time.seconds,
                kind=request.target.kind,
                model_version=time_model.VERSION,
                diagnosis={**simulation.diagnosis(run, chip, time), "artefact": found.sources[workload.id]},
            )
        )
        return None


def _kinds(request: Request, position: int) -> Sequence[str]:
    """Kinds of inputs for one checked shape: some while searching, two drawn where it is large, all for a finalist."""
    if request.thorough:
        return request.operator.input_kinds
    workload = request.checked[position]
    return dealt_kinds(request, workload, LARGE_KINDS if workload in request.large_checks else None)


def _operations_beside(request: Request) -> frozenset[str]:
    return request.operator.beside if isinstance(request.operator, BesideKernels) else frozenset()


def _compile_job(request: Request, found: Findings, wanted: Sequence[str], delays: bool) -> Frame:
    checked = (w for w in request.checked if w not in request.measured and w.id not in found.facts)
    order = [*request.measured, *checked]
    workloads = [
        {
            **request.described(workload),
            "calling_convention": found.conventions[workload.id],
            "known": request.fixed_operands(workload),
        }
        for workload in order
    ]
    data = {
        "topology": request.target.chip.topology,
        "workloads": workloads,
        "alone": structure.timed_alone(_operations_beside(request)),
        "delays": delays,
        "facts_only": [w.id for w in order if w.id not in wanted],
    }
    return Frame("pallas.compile", data, blobs={w.id: found.modules[w.id] for w in order})


def _scaled_limits(limits: ChildLimits, factor: float) -> ChildLimits:
    return dataclasses.replace(limits, wall_seconds=limits.wall_seconds * factor)


def _candidate_failure(frame: Frame) -> Failure:
    """A verdict for an exception in a child, by phase and by what it says."""
    phase, kind = str(frame.data["phase"]), str(frame.data["type"])
    message, trace = str(frame.data["message"]), str(frame.data.get("trace", ""))
    reason = one_line(f"{kind}: {message}" if message else kind)
    if kind == "NestedKernel":
        return Failure(Verdict.IMPLAUSIBLE, one_line(message), trace)
    if kind == "MemoryError" or _RESOURCES.search(message):
        over = _OVER.search(message)
        took = over and (over[2] or over[3])
        reason = f"its blocks take {took} of {over['limit']} bytes of {over['space']}" if over else reason
        return Failure(Verdict.RESOURCE_ERROR, reason, trace)
    if phase == "topology":
        return Failure(Verdict.INFRA_ERROR, reason, trace)
    if phase != "check":
        return Failure(Verdict.COMPILE_ERROR, reason, trace)
    if kind == "NotImplementedError":
        return Failure(Verdict.COMPILE_ERROR, reason, trace, Stage.CHECK)
    found = re.search(r"IndexError: [^\n]*|[^\n]*out[- ]of[- ]bounds[^\n]*", message, re.I)
    if kind == "IndexError" or found:
        reason = one_line(f"reads or writes outside an array: {found[0] if found else message}")
    return Failure(Verdict.INCORRECT, reason, trace, Stage.CHECK)


def _child_failure(outcome: ChildOutcome, doing: str) -> Failure | None:
    """A verdict for a child that did not end by itself."""
    if outcome.ending is Ending.DONE:
        return None
    if outcome.ending is Ending.TIMEOUT or "SIGXCPU" in outcome.detail:
        return Failure(Verdict.TIMEOUT, one_line(f"{doing}: {outcome.detail}"), outcome.log)
    exhausted = outcome.ending is Ending.MEMORY or "MemoryError" in outcome.detail
    if exhausted or _RESOURCES.search(outcome.detail):
        return Failure(Verdict.RESOURCE_ERROR, one_line(f"{doing}: {outcome.detail}"), outcome.log)
    return Failure(Verdict.CRASHED, one_line(f"{doing}: {outcome.detail}"), outcome.log)


def _compiler_failure(outcome: ChildOutcome, limits: ChildLimits) -> Failure | None:
    """The same for the compile child, whose own aborts are the compiler's answer to the kernel."""
    if outcome.signal is Signals.SIGABRT and not _RESOURCES.search(outcome.log + outcome.detail):
        hint = "a copy changes the layout (8-bit blocks need 32 rows); " if "dma-general" in outcome.detail else ""
        ended = _SIMULATOR.search(outcome.detail)
        why = f"libtpu's simulator cannot run it: {ended[1]}" if ended else f"libtpu aborted: {outcome.detail}"
        reason = one_line(f"{hint}{why}")
        return Failure(Verdict.COMPILE_ERROR, reason, outcome.log)
    if "SIGXFSZ" in outcome.detail:
        reason = f"the kernel's schedule takes more than {limits.file_bytes} bytes to write"
        return Failure(Verdict.RESOURCE_ERROR, reason, outcome.log)
    if _RESOURCES.search(outcome.log):
        return Failure(Verdict.RESOURCE_ERROR, one_line(f"compiling: {outcome.detail}"), outcome.log)
    return _child_failure(outcome, "compiling and simulating")
