"""Asks the child that takes kernels in (``workers.intake.main``)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tilewright.evolve.errors import UserError
from tilewright.fitness.targets import Target
from tilewright.workers.child.launch import ROOT

SECONDS = 300.0
_LAST_LINES = 4


def part_of(target: Target) -> dict[str, Any]:
    """What a wrapper may ask of the target's device."""
    part = target.part
    return {
        "multiprocessors": int(getattr(part, "multiprocessors", 132)),
        "smem_bytes": int(getattr(part, "smem_bytes", 232448)),
        "capability": int(getattr(part, "capability", 90)),
        "product": str(getattr(part, "product", target.name)),
    }


def ask(
    path: Path,
    function: str | None,
    reference: str,
    calls: Sequence[str],
    target: Target,
    program: str = "main",
) -> Mapping[str, Any]:
    """The child's answer. Raises UserError where it gives none."""
    with tempfile.TemporaryDirectory(prefix="tilewright-intake-") as folder:
        request = {
            "path": str(path.resolve()), "function": function, "reference": reference, "calls": list(calls),
            "folder": folder, "part": part_of(target),
        }  # fmt: skip
        environment = {
            **os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu",
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")])),
        }  # fmt: skip
        command = [sys.executable, "-m", f"tilewright.workers.intake.{program}"]
        try:
            done = subprocess.run(
                command,
                input=json.dumps(request).encode(),
                capture_output=True,
                env=environment,
                timeout=SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise UserError(f"{path.name}: taking {function} in took more than {SECONDS:.0f} s.") from error
    try:
        answer = json.loads(done.stdout)
    except ValueError as error:
        last = " ".join(done.stderr.decode(errors="replace").strip().splitlines()[-_LAST_LINES:])
        raise UserError(
            f"{path.name}: the child that takes {function} in ended without an answer: {last}"
        ) from error
    if not isinstance(answer, dict):
        raise UserError(f"{path.name}: the child that takes {function} in gave no answer.")
    return answer
