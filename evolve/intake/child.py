"""Asks the child that takes kernels in (``workers.intake.triton.program``)."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright.evolve.errors import UserError
from tilewright.workers.child.launch import ROOT

if TYPE_CHECKING:
    from tilewright.fitness.targets import Target

MAIN, PALLAS = "triton.program", "pallas.program"
"""The programs: for functions that launch Triton kernels, and for Pallas ones."""

SECONDS = 600.0
"""Most that taking a function in may take."""

_LAST_LINES = 4
_TPU = re.compile(r"tpu.*|v\d+[a-z]*")


def part_of(target: Target) -> dict[str, Any]:
    """What a wrapper may ask of the target's device."""
    part = target.part
    return {
        "multiprocessors": int(getattr(part, "multiprocessors", 132)),
        "smem_bytes": int(getattr(part, "smem_bytes", 232448)),
        "capability": int(getattr(part, "capability", 90)),
        "product": str(getattr(part, "product", target.name)),
    }


class Taker:
    """A child that takes kernels in, started before it is known what: what it imports takes seconds.

    Close it; it answers one request.
    """

    def __init__(self, program: str = MAIN) -> None:
        self.program = program
        environment = {
            **os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu",
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")])),
        }  # fmt: skip
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"tilewright.workers.intake.{program}"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment,
        )  # fmt: skip

    def answer(
        self, request: Mapping[str, Any], seconds: float, meanwhile: Callable[[], None]
    ) -> tuple[bytes, bytes]:
        """What it writes to both outputs. Raises subprocess.TimeoutExpired."""
        began = time.monotonic()
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it ended early, and says why on its other output
            self._process.stdin.write(json.dumps(request).encode())
            self._process.stdin.close()
        self._process.stdin = None
        meanwhile()
        return self._process.communicate(timeout=max(1.0, seconds - (time.monotonic() - began)))

    def close(self) -> None:
        """Kill it, where it still runs."""
        self._process.kill()
        self._process.communicate()


@contextlib.contextmanager
def beginning(target: str | None) -> Iterator[Taker]:
    """The child that will take a function in, for a target of that name."""
    taker = Taker(PALLAS if target and _TPU.fullmatch(target) else MAIN)
    try:
        yield taker
    finally:
        taker.close()


def ask(
    path: Path,
    function: str | None,
    reference: str,
    calls: Sequence[str],
    target: Target,
    program: str = MAIN,
    taker: Taker | None = None,
    meanwhile: Callable[[], None] = lambda: None,
) -> Mapping[str, Any]:
    """The child's answer. Raises UserError where it gives none.

    ``taker``: a child that was started before, and is closed by who started it; one of another program is not asked.
    ``meanwhile``: called once while the child works.
    """
    own = None if taker is not None and taker.program == program else Taker(program)
    asked = own or taker
    assert asked is not None
    try:
        with tempfile.TemporaryDirectory(prefix="tilewright-intake-") as folder:
            request = {
                "path": str(path.resolve()), "function": function, "reference": reference, "calls": list(calls),
                "folder": folder, "part": part_of(target),
            }  # fmt: skip
            out, err = asked.answer(request, SECONDS, meanwhile)
    except subprocess.TimeoutExpired as error:
        raise UserError(f"{path.name}: taking {function} in took more than {SECONDS:.0f} s.") from error
    finally:
        if own is not None:
            own.close()
    try:
        answer = json.loads(out)
    except ValueError as error:
        last = " ".join(err.decode(errors="replace").strip().splitlines()[-_LAST_LINES:])
        raise UserError(
            f"{path.name}: the child that takes {function} in ended without an answer: {last}"
        ) from error
    if not isinstance(answer, dict):
        raise UserError(f"{path.name}: the child that takes {function} in gave no answer.")
    return answer
