"""One job of Triton's interpreter: what ``triton_device`` does, in a process that is gone afterwards.

The interpreter is the one executor that needs a kernel's Python beside its inputs. So every job has a process of its
own, which holds those inputs, no oracle, and no other candidate's job.

Job kinds ``interpret.check``, ``interpret.time`` (see ``triton_device``) and ``interpret.hello``, which is answered
with ``ready``. Job data: ``runner_config``, and that of the kind.
"""

from __future__ import annotations

from tilewright.workers.child.frames import Frame
from tilewright.workers.runners.device_runner import Answer
from tilewright.workers.runners.triton.interpreter_runner import Runner


def prepare() -> None:
    """Load what torch and Triton load with their first use; children are forked from a process that has."""
    import triton.experimental.gluon.nvidia.hopper  # noqa: F401 - what a tensor's type is looked up in

    Runner({"product": ""})


def run(job: Frame, answer: Answer) -> None:
    """Serve it."""
    runner = Runner(job.data["runner_config"])
    kind = job.kind.removeprefix("interpret.")
    if kind == "hello":
        answer(Frame("ready", runner.hello))
    else:
        runner.run(Frame(kind, job.data, job.arrays, job.blobs), answer)
