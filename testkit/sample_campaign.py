"""A made-up campaign written through the journal's own interface, for tests of what reads journals.

Its figures follow a formula, not a chip: they only need the shape of real ones.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np

from testkit.evaluations import failed, figures, passed
from tilewright.evolve.record.history import Candidate, Mutation, MutationKind
from tilewright.evolve.record.journal import Journal
from tilewright.evolve.space.genome import Genome, Value
from tilewright.fitness.evaluation import Evaluation, GateReading, Stage, Verdict, WorkloadFigures

OPERATOR, TARGET, SUITE = "gemm_fp8_fused/g512", "tpu7x", "quickstart"
SUITE_WORKLOADS = {"1024x2048x2048": 2 * 1024 * 2048**2, "2048x2048x2048": 2 * 2048**3}
FINAL_WORKLOADS = {"4096x4096x4096": 2 * 4096**3}
CLOCK_HZ, PEAK_TFLOPS = 2.2e9, 2307.0
TOOLCHAIN = {"tilewright": "0.1.0", "python": "3.11.7", "jax": "0.10.2", "libtpu": "0.0.51", "ray": "2.60.0"}
SYSTEM = {"os": "Linux 6.1", "architecture": "x86_64", "cores": "2", "memory_gib": "8", "commit": "0123abcd+changes"}
HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=alert(1)>&\"'\x00\x1b[31m"

SOURCE = '''"""Fused-quantise FP8 GEMM."""
import jax.numpy as jnp
from jax.experimental import pallas as pl

SPACE = {"block_m": (256, 512, 1024), "placement": ("per_use", "cached", "ahead")}
DEFAULTS = {"block_m": 512, "placement": "per_use"}


def quantise(tile):
    scale = jnp.max(jnp.abs(tile), axis=1, keepdims=True) / 448.0
    return tile / scale, scale


def build(params):
    def kernel(a_ref, w_ref, out_ref):
        tile, scale = quantise(a_ref[...])
        out_ref[...] = jnp.dot(tile, w_ref[...]) * scale

    return kernel
'''
DEFAULTS: dict[str, Value] = {
    "block_m": 512,
    "block_n": 1024,
    "block_k": 1024,
    "placement": "per_use",
    "skew": 0,
    "unroll": False,
}
CHOICES: dict[str, tuple[Value, ...]] = {
    "block_m": (256, 512, 1024),
    "block_n": (512, 1024, 2048),
    "block_k": (512, 1024, 2048, 4096),
    "placement": ("per_use", "cached", "ahead"),
    "skew": (0, 1, 2, 4),
    "unroll": (False, True),
}
FAILURES = (
    (Verdict.RESOURCE_ERROR, Stage.COMPILE, "scoped vmem limit: wants {n} MiB of 64 MiB"),
    (Verdict.INCORRECT, Stage.CHECK, "gate exact on outliers reads {n}.2 dB, needs 45 dB"),
    (Verdict.DUPLICATE, Stage.COMPILE, "compiles to the same artefact as candidate {n}"),
    (Verdict.TIMEOUT, Stage.MEASURE, "measure took longer than 180 s"),
    (Verdict.COMPILE_ERROR, Stage.COMPILE, f"Mosaic refused block {{n}}: {HOSTILE}"),
)


def sample_seconds(params: dict[str, Value], flops: int) -> float:
    """A made-up time in seconds of a schedule."""
    waste = {"per_use": 1.1, "cached": 0.55, "ahead": 0.34}[str(params["placement"])]
    waste += 0.10 * abs(math.log2(int(params["block_m"]) / 1024))
    waste += 0.07 * abs(math.log2(int(params["block_n"]) / 1024))
    waste += 0.09 * abs(math.log2(int(params["block_k"]) / 4096))
    waste += 0.05 * abs(int(params["skew"]) - 2) + 0.06 * (not params["unroll"])
    return flops / (PEAK_TFLOPS * 1e12) * (1 + waste)


def sample_figures(params: dict[str, Value], workload: str, flops: int, factor: float = 1.0) -> WorkloadFigures:
    seconds = sample_seconds(params, flops) * factor
    busy = min(1.0, flops / (PEAK_TFLOPS * 1e12) / seconds)
    cycles = round(seconds * CLOCK_HZ)
    diagnosis: dict[str, Any] = {
        "cycles": cycles,
        "mxu_busy": busy,
        "valu_busy": min(1.0, 0.9 - 0.4 * busy),
        "overlap": 0.2 + 0.6 * busy,
        "spills": 2402 if params["placement"] == "per_use" else 310,
        "vmem_bytes": int(params["block_m"]) * int(params["block_k"]) * 6,
        "hbm_bytes": flops // 640,
        "critical_path": {"MATMUL": round(cycles * busy), "VALU": round(cycles * (1 - busy))},
    }
    tflops = flops / seconds / 1e12
    return figures(workload, seconds, tflops=tflops, roofline_fraction=tflops / PEAK_TFLOPS, diagnosis=diagnosis)


def sample_evaluation(genome: Genome, workloads: dict[str, int], *, factor: float = 1.0) -> Evaluation:
    params = dict(genome.params)
    timed = tuple(sample_figures(params, w, f, factor) for w, f in workloads.items())
    fitness = math.exp(sum(math.log(f.tflops) for f in timed) / len(timed))
    gates = tuple(
        GateReading(gate=g, inputs=i, value=49.3, passed=True) for g in ("field", "exact") for i in ("randn", "spread")
    )
    return passed(
        genome,
        *timed,
        target=TARGET,
        suite=SUITE,
        fitness=fitness,
        interval=(fitness, fitness),
        gates=gates,
        descriptors={"placement": str(params["placement"]), "vmem": "16-32 MiB"},
        artefact=f"artefact-{genome.id}",
        toolchain={"libtpu": "0.0.51"},
        wall_seconds=2.5,
        worker="worker 0",
    )


def failed_evaluation(genome: Genome, which: int, n: int) -> Evaluation:
    verdict, stage, reason = FAILURES[which % len(FAILURES)]
    facts = {"stage": stage, "reason": reason.format(n=n), "log": f"line one\n{HOSTILE}\n"}
    return failed(genome, verdict, target=TARGET, suite=SUITE, wall_seconds=0.8, worker="worker 1", **facts)


class SampleCampaign:
    """Writes candidates one by one, so that a test can look at a journal that grows."""

    def __init__(self, path: Path, campaign: str = "quickstart-001") -> None:
        self.journal = Journal(path, write=True, create=True)
        self.rng = np.random.default_rng(7)
        self.passed: list[tuple[Candidate, Evaluation]] = []
        self.known: set[str] = set()
        self.index = 0
        facts = {
            "id": campaign,
            "name": "quickstart",
            "operator": OPERATOR,
            "target": TARGET,
            "target_kind": "modelled",
            "suite": SUITE,
            "seed": 7,
            "budget": {"evaluations": 60, "wall_seconds": 300.0, "fitness": None},
            "seeds": ["naive"],
            "floors": {"4096x4096x4096": {"mxu_seconds": 64.5e-6, "vector_seconds": 15.3e-6, "hbm_seconds": 21.6e-6}},
        }
        self.journal.set_meta("campaign", facts)
        self.journal.set_meta("toolchain", TOOLCHAIN)
        self.journal.set_meta("system", SYSTEM)
        self.journal.set_meta("config", {"name": "quickstart", "operator": OPERATOR, "seed": 7})
        self.journal.add_event("started")
        bf16 = Genome("def build(params):\n    return None\n", {**DEFAULTS, "placement": "ahead"})
        self.bf16 = bf16
        self.journal.add_reference("bf16", "suite", sample_evaluation(bf16, SUITE_WORKLOADS, factor=1.25))

    def grow(self, count: int) -> None:
        """Add ``count`` candidates, each with its evaluation."""
        for _ in range(count):
            candidate = self._seed() if self.index == 0 else self._child()
            self.journal.add_candidate(candidate)
            fails = self.index > 0 and self.rng.random() < 0.25
            if fails:
                evaluation = failed_evaluation(candidate.genome, self.index, self.index)
            else:
                evaluation = sample_evaluation(candidate.genome, SUITE_WORKLOADS)
                self.passed.append((candidate, evaluation))
            self.journal.add_evaluation(candidate.index, evaluation)
            self.index += 1

    def finish(self) -> Genome:
        """Run the final check and close the campaign; returns the winner."""
        winner = max(self.passed, key=lambda ce: ce[1].fitness or 0.0)[0].genome
        seed = self.passed[0][0].genome
        for name, genome in (("winner", winner), (f"finalist:{winner.id}", winner), ("seed:naive", seed)):
            self.journal.add_reference(name, "final", sample_evaluation(genome, FINAL_WORKLOADS))
        self.journal.add_reference("bf16", "final", sample_evaluation(self.bf16, FINAL_WORKLOADS, factor=1.25))
        self.journal.add_event("finished", reason="evaluations", winner=winner.id)
        return winner

    def close(self) -> None:
        self.journal.close()

    def _seed(self) -> Candidate:
        self.known.add(Genome(SOURCE, DEFAULTS).id)
        mutation = Mutation(MutationKind.SEED, "seed", "seed kernel naive")
        return Candidate(0, Genome(SOURCE, DEFAULTS), (), mutation, 0, 0)

    def _child(self) -> Candidate:
        while True:
            ranked = sorted(self.passed, key=lambda ce: -(ce[1].fitness or 0.0))[:6]
            parent = ranked[int(self.rng.integers(len(ranked)))][0]
            other = ranked[int(self.rng.integers(len(ranked)))][0]
            genome, parents, mutation = self._mutate(parent, other)
            if genome.id not in self.known:
                break
        self.known.add(genome.id)
        generation = 1 + max(c.generation for c in (parent, other) if c.genome.id in parents)
        return Candidate(self.index, genome, parents, mutation, generation, self.index % 2)

    def _mutate(self, parent: Candidate, other: Candidate) -> tuple[Genome, tuple[str, ...], Mutation]:
        draw, source, params = self.rng.random(), parent.genome.source, dict(parent.genome.params)
        if draw < 0.15 and other is not parent:
            for name in CHOICES:
                if self.rng.random() < 0.5:
                    params[name] = other.genome.params[name]
            detail = f"crossover of #{parent.index} and #{other.index}"
            mutation = Mutation(MutationKind.CROSSOVER, "crossover", detail)
            return Genome(source, params), (parent.genome.id, other.genome.id), mutation
        if draw < 0.3:
            line = f"    # rewrite {self.index} {HOSTILE!r}\n    shift = {self.index}\n    return tile / scale"
            source = source.replace("    return tile / scale", line)
            mutation = Mutation(MutationKind.REWRITE, "rewrite", "hoist the scale out of the inner loop")
            return Genome(source, params), (parent.genome.id,), mutation
        name = list(CHOICES)[int(self.rng.integers(len(CHOICES)))]
        value = CHOICES[name][int(self.rng.integers(len(CHOICES[name])))]
        detail = f"{name} {params[name]} -> {value}"
        params[name] = value
        mutation = Mutation(MutationKind.PARAMETER, "parameters", detail)
        return Genome(source, params), (parent.genome.id,), mutation


def write_sample(path: Path, count: int = 48, *, finish: bool = True, campaign: str = "quickstart-001") -> Path:
    """A whole campaign of ``count`` evaluations in a journal at ``path``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sample = SampleCampaign(path, campaign)
    sample.grow(count)
    if finish:
        sample.finish()
    sample.close()
    return path
