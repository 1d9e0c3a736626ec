"""Prompts for a language model, and the facts in them: the device's, the gates' bounds, what a module may import.

They depend on the history alone, so that a replay asks the same questions.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tilewright.evolve.proposers.llm.client import Messages
from tilewright.evolve.record.history import Candidate, History, MutationKind
from tilewright.fitness.architectures import Architecture
from tilewright.fitness.chips import Chip
from tilewright.fitness.dialect_names import MODULES
from tilewright.fitness.evaluation import Evaluation, Verdict
from tilewright.fitness.gpus import UNKNOWN_RATE, Gpu
from tilewright.fitness.targets import Target
from tilewright.fitness.tpu.schedule import hints
from tilewright.seeds.operator import AgreementGate, BitExactGate, Gate

RELATIVES = 3
FAILURES = 4
_HIDDEN = ("timeline",)

SYSTEM = """You improve one accelerator kernel at a time. You are given the operator's contract, a kernel module, \
and figures from a real compiler. Propose one change that makes the kernel faster and keeps it exactly correct.

Rules for the module:
- Module level holds a docstring, imports, constants and function definitions only.
- SPACE maps each parameter to a tuple of allowed values, DEFAULTS gives one legal value each, CONSTRAINTS maps \
expressions over parameters, dimensions and constants to the reason. Keep them as literals and in step with the code.
- No input or output, no introspection, no global state, no names or attributes that start with an underscore.
- Keep the entry point and its signature.

Answer with a line 'SUMMARY: <what changed and why it is faster>' and then either one or more blocks

<<<<<<< SEARCH
text that occurs exactly once in the module
=======
its replacement
>>>>>>> REPLACE

or, for larger changes, the whole module in one fenced Python block."""


@dataclass(frozen=True)
class Contract:
    """The campaign as the prompts tell it: texts a person wrote, not a model. ``facts`` is a line each."""

    operator: str
    text: str
    target: str
    workloads: tuple[str, ...]
    facts: tuple[str, ...] = ()


def improve(contract: Contract, history: History, parent: Candidate) -> Messages:
    """Ask for a faster child of ``parent``."""
    evaluation = history.evaluation(parent.genome.id)
    parts = [
        _contract(contract),
        _kernel("Kernel to improve", parent, evaluation),
        _relatives(history, parent),
        _failures(history),
        "Propose one change.",
    ]
    return [_system(), {"role": "user", "content": "\n\n".join(filter(None, parts))}]


def mend(contract: Contract, history: History, failed: Candidate, evaluation: Evaluation) -> Messages:
    """Show a failed child its own error and ask for a version that keeps its idea."""
    parts = [
        _contract(contract),
        _kernel("Kernel that failed", failed, evaluation),
        f"It was meant to: {failed.mutation.detail}",
        f"It failed at {evaluation.stage.value} with {evaluation.verdict.value}: {evaluation.reason}",
        f"Log:\n{evaluation.log[-2000:]}" if evaluation.log else "",
        "Keep the idea and mend the kernel.",
    ]
    return [_system(), {"role": "user", "content": "\n\n".join(filter(None, parts))}]


def retry_messages(messages: Messages, reply: str, error: str) -> Messages:
    """The same question after an answer that could not be used."""
    return [
        *messages,
        {"role": "assistant", "content": reply},
        {"role": "user", "content": f"That could not be used: {error}. Answer again in the required form."},
    ]


def _system() -> dict[str, str]:
    return {"role": "system", "content": SYSTEM}


def _contract(contract: Contract) -> str:
    shapes = ", ".join(contract.workloads)
    opening = f"Operator {contract.operator} on {contract.target}, shapes {shapes}.\n\n{contract.text}"
    return "\n\n".join(filter(None, (opening, "\n".join(contract.facts))))


def _kernel(title: str, candidate: Candidate, evaluation: Evaluation | None) -> str:
    params = json.dumps(dict(candidate.genome.params))
    text = f"{title} (parameters {params}):\n```python\n{candidate.genome.source}```"
    return f"{text}\n\nIts figures:\n{_figures(evaluation)}" if evaluation else text


def _figures(evaluation: Evaluation) -> str:
    lines = []
    for w in evaluation.workloads:
        shown = {k: v for k, v in sorted(w.diagnosis.items()) if k not in _HIDDEN}
        lines.append(
            f"- {w.workload}: {w.seconds * 1e6:.1f} us {w.kind.value}, {w.rate:.0f} {w.unit}, "
            f"{100 * w.roofline_fraction:.0f} % of the roofline; {json.dumps(shown, sort_keys=True)}"
        )
        lines += [f"  {sentence}" for sentence in hints(w.diagnosis)]
    for kernel in evaluation.compiled.values():
        lines.append(f"- its code: {json.dumps(kernel, sort_keys=True)}")
    return "\n".join(lines) or f"- {evaluation.verdict.value}: {evaluation.reason}"


def _relatives(history: History, parent: Candidate) -> str:
    others = [(c, e) for c, e in history.successes() if c.genome.id != parent.genome.id]
    best = sorted(others, key=lambda ce: (-(ce[1].fitness or 0.0), ce[0].index))[:RELATIVES]
    lines = [
        f"- {e.fitness:.0f} {e.unit}: {_story(c)}; parameters {json.dumps(dict(c.genome.params))}" for c, e in best
    ]
    return "The best others so far:\n" + "\n".join(lines) if lines else ""


def _failures(history: History) -> str:
    failed: Sequence[tuple[Candidate, Evaluation]] = [
        (c, e)
        for c, e in history.evaluated
        if e.verdict not in (Verdict.OK, Verdict.OUTPACED, Verdict.INFRA_ERROR)
        and (e.verdict is not Verdict.DUPLICATE or c.mutation.kind is MutationKind.LLM)
    ]
    lines = [f"- {_story(c)}: {e.verdict.value}, {e.reason}" for c, e in failed[-FAILURES:]]
    return "What failed lately:\n" + "\n".join(lines) if lines else ""


def _story(candidate: Candidate) -> str:
    return f"{candidate.mutation.kind.value}: {candidate.mutation.detail}"


_CUDA = (
    "A module may be CUDA C++ instead: the constant CUDA holds the device code (a raw string, no headers, globals, "
    "__constant__ variables, no clocks), every parameter is a macro of its name, and launch(inputs, params) computes "
    'nothing but returns {"steps": ({"kernel": name, "grid": (x, y, z), "block": threads, "cluster": n, '
    '"shared": bytes, "arguments": ("tensor", {"i32": 4}, '
    '{"map": "tensor", "box": (rows, columns), "swizzle": 128})},), '
    '"scratch": {name: (dtype, shape)}, "defines": {name: number}}; outputs are named as the operator names them.'
)

_PALLAS = ("jax",)
_TRITON = ("torch", "triton")
_EITHER = ("__future__", "functools", "math")


def facts_of(target: Target, gates: Iterable[Gate]) -> tuple[str, ...]:
    """One line for each, units within. Peaks that nobody knows are left out."""
    gated = "Gates: " + "; ".join(map(_gate, gates)) + "."
    facts = (_device(target), gated, _imports(target.entry))
    return (*facts, _CUDA) if target.entry == "launch" and not target.interpreted else facts


def _device(target: Target) -> str:
    part = target.part
    if isinstance(part, Architecture):
        return (
            f"Device {part.product} ({part.arch}): {part.smem_bytes >> 10} KiB of shared memory for one program, "
            f"{part.registers} registers a lane on each of {part.simds} SIMDs, "
            f"{part.warps} warps of {part.lanes} lanes."
        )
    rates = _rates(part)
    if isinstance(part, Gpu):
        held = f"{part.multiprocessors} multiprocessors, {part.smem_bytes >> 10} KiB of shared memory for one program"
        return f"Device {part.product}: {', '.join([held, *rates])}."
    square = f"{part.mxu_size} x {part.mxu_size}"
    held = f"one core, {part.vmem_bytes >> 20} MiB of VMEM, {part.mxus} matrix units of {square}"
    return f"Device {part.device_kind}: {', '.join([held, *rates])}."


def _rates(part: Chip | Gpu) -> Sequence[str]:
    peaks = {kind: rate for kind, rate in part.peaks.items() if rate < UNKNOWN_RATE}
    found = [f"{kind} peak {rate / 1e12:.0f} TFLOP/s" for kind, rate in peaks.items()]
    if part.hbm < UNKNOWN_RATE:
        found.append(f"memory {part.hbm / 1e12:.2f} TB/s, of which a copy reaches {part.copy / 1e12:.2f}")
    return found


def _gate(gate: Gate) -> str:
    if isinstance(gate, BitExactGate):
        return f"{', '.join(gate.outputs)} bit for bit as {gate.reference}"
    if isinstance(gate, AgreementGate):
        return f"at least {gate.least:.2%} of {', '.join(gate.outputs)} with the bits of {gate.reference}"
    return f"at least {gate.min_db:g} dB against {gate.reference}, and no element far off"


def _imports(entry: str) -> str:
    roots = (*_EITHER, *(_PALLAS if entry == "build" else _TRITON))
    allowed = (name for name in sorted(MODULES) if name.partition(".")[0] in roots)
    return "A module may import: " + ", ".join(allowed) + "."
