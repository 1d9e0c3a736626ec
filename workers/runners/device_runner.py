"""Parts that the runners of measured devices share: how a job is served, and which candidate is measured briefly."""

import statistics
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tilewright.seeds.sampled import kind_tables
from tilewright.workers.child.frames import Frame
from tilewright.workers.runners.failures import error_frame

Answer = Callable[[Frame], None]

ALIVE_SECONDS = 1.0

CLEARLY_SLOWER = 1.5
"""A candidate behind the pace by this factor on its first workloads is measured with single calls from there on."""

LEAST_PACED = 2


class DeviceRunner:
    """Serves ``check`` and ``time`` jobs; their frames are told in ``workers.runners.triton.interpreter_runner``."""

    def run(self, job: Frame, answer: Answer) -> None:
        """Serve one job; failures of a candidate become an ``error`` frame."""
        serve = {"check": self._check, "time": self._time}[job.kind]
        state = {"phase": "import", "entry": job.data["entries"][0]["id"]}
        try:
            serve(job, answer, state)
        except Exception as error:  # noqa: BLE001 - whatever a candidate raises is its answer
            answer(error_frame(state["phase"], error, spoiled=self._spoiled(error), entry=state["entry"]))

    def _check(self, job: Frame, answer: Answer, state: dict[str, str]) -> None:
        raise NotImplementedError

    def _time(self, job: Frame, answer: Answer, state: dict[str, str]) -> None:
        raise NotImplementedError

    def _spoiled(self, error: BaseException) -> bool:
        """Whether this process must not be used again."""
        raise NotImplementedError


def operand_tables(job: Frame, kind: str) -> Mapping[str, np.ndarray]:
    """By operand, what its elements of this kind are drawn from (see ``seeds.sampled``); empty where they are sent."""
    return kind_tables({name: job.arrays[f"table/{name}"] for name in job.data.get("tables", ())}, kind)


def sent_array(job: Frame, workload: str, kind: str, name: str) -> np.ndarray:
    """What was sent of an operand of a timed workload: whole, or its table (see ``seeds.sampled.SentOperands``), which
    kinds may share."""
    own = f"{workload}/{kind}/{name}"
    return job.arrays[own if own in job.arrays else f"{workload}/{name}"]


def far_behind(ratios: Sequence[float]) -> bool:
    """Whether a candidate with these ratios to the pace so far is measured briefly from here on."""
    return len(ratios) >= LEAST_PACED and statistics.geometric_mean(ratios) > CLEARLY_SLOWER
