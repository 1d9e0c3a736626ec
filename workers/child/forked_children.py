"""Jobs that each have a process of their own, forked from one that has imported what they need."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tilewright.workers.child.ending import ChildOutcome, Ending
from tilewright.workers.child.frames import Frame
from tilewright.workers.child.launch import Template
from tilewright.workers.child.run_once import ChildLimits, run_child, temporary_folder
from tilewright.workers.child.session import JobLimits, SessionDied

START_SECONDS = 90.0
MEMORY_BYTES = 8 << 30


class ForkedChildren:
    """What a ``SessionPool`` is for jobs that share a process. ``prefix`` goes before a job's kind.

    Not safe for several threads, but for one template's several.
    """

    replaced = 0

    def __init__(
        self,
        prefix: str,
        modules: tuple[str, ...],
        runner_config: Mapping[str, Any],
        environment: Mapping[str, str],
        scratch: Path | None = None,
        own_folders: tuple[str, ...] = (),
        template: Template | None = None,
    ) -> None:
        """``own_folders``: variables of the environment that name a folder of the one child alone.

        ``template``: of others of these children, to fork from, too.
        """
        self._prefix = prefix
        self._config = dict(runner_config)
        self._environment = dict(environment)
        self._scratch = scratch
        self._own_folders = own_folders
        self._own = template is None
        self.template = template or Template(modules, {"HOME": "/tmp", **environment})
        self.cpu_seconds = 0.0
        """CPU time of these children."""
        self._hello: Mapping[str, Any] | None = None

    def hello(self) -> Mapping[str, Any]:
        """What the runner says about itself. Raises SessionDied, OSError."""
        if self._hello is None:
            outcome = self.run(Frame("hello"), JobLimits(START_SECONDS, START_SECONDS))
            ready = outcome.first("ready")
            if ready is None:
                raise SessionDied(" ".join(f"{outcome.detail}: {outcome.log[-200:]}".split()))
            self._hello = ready.data
        return self._hello

    def run(self, job: Frame, limits: JobLimits) -> ChildOutcome:
        """One job; the frames are those it answered with. Raises OSError when no process can be made."""
        asked = Frame(self._prefix + job.kind, {**job.data, "runner_config": self._config}, job.arrays, job.blobs)
        with temporary_folder(self._scratch) as folder:
            child = ChildLimits(limits.wall_seconds, MEMORY_BYTES)
            own = {name: str(folder / name.lower()) for name in self._own_folders}
            outcome = run_child(
                asked, child, folder, extra_environment={**self._environment, **own}, launcher=self.template
            )
        self.cpu_seconds += outcome.cpu_seconds
        outcome.frames = [frame for frame in outcome.frames if frame.kind not in ("started", "done")]
        if outcome.ending is Ending.MEMORY:
            failure = {"type": "MemoryError", "message": outcome.detail, "spoiled": True, "entry": None}
            outcome.frames.append(Frame("error", {"phase": "launch", **failure}))
        return outcome

    def warm(self) -> None:
        """Start the process that children are forked from, without waiting for its imports. Raises OSError."""
        self.template.warm()

    def close(self) -> None:
        """End the process that children are forked from, unless it is others', too."""
        if self._own:
            self.template.close()
