"""Winners of functions compared with them on odd calls: on each they agree, or the original serves.

``python -m experiments.studies.tune.odd TABLE``: a line of TABLE is ``FILE:FUNCTION | CALL``, of Triton or of Pallas.
Each function is read in, its winner's module written with sizes that nobody has searched, and called beside the
original (``testkit.odd_calls``), in Triton's interpreter or JAX's. A line of JSON for each says how many calls were
compared, how many the winner served, and those that differ. A call at which the original ends its process is left out.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

from testkit import ROOT

SECONDS = 900
"""Most that one function may take."""


def main() -> None:
    for line in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines():
        place, bar, call = line.partition(" | ")
        if bar and not line.startswith("#"):
            sys.stdout.write(json.dumps(compared_in_child(place, call)) + "\n")
            sys.stdout.flush()


def compared_in_child(place: str, call: str) -> dict[str, Any]:
    """The row of a function; begun again without the call at which its process ended."""
    pallas = "pallas" in Path(place.rpartition(":")[0]).read_text(encoding="utf-8")
    more = {"JAX_PLATFORMS": "cpu"} if pallas else {"TRITON_INTERPRET": "1"}
    environment = {**os.environ, **more, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    left_out: list[str] = []
    while True:
        command = [
            sys.executable,
            "-W",
            "ignore",
            "-m",
            __spec__.name,
            "one",
            place,
            call,
            str(int(pallas)),
            *left_out,
        ]
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=SECONDS, cwd=ROOT
            )
        except subprocess.TimeoutExpired:
            return {"function": place, "call": call, "why": f"more than {SECONDS} s", "left_out": left_out}
        lines = [json.loads(row) for row in done.stdout.splitlines() if row.startswith("{")]
        begun = [row["begun"] for row in lines if "begun" in row]
        if done.returncode >= 0 or not begun or len(left_out) > 9:
            break
        left_out.append(begun[-1])
    why = "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["no reason"])[-1][:300]
    rows = [row for row in lines if "case" in row]
    return {
        "function": place, "call": call, "why": why, "compared": len(rows), "left_out": left_out,
        "served": [row["case"] for row in rows if row["served"]], "facts": [row["facts"] for row in lines if "facts" in row],
        "differ": {row["case"]: row["sides"] for row in rows if row["sides"]},
    }  # fmt: skip


@contextlib.contextmanager
def _device(part: Mapping[str, Any]) -> Iterator[None]:
    """While it is entered, what wrappers ask of a GPU is answered: kernels run in the interpreter, on the host."""
    import torch

    from tilewright.workers.intake.triton.stub_device import device_numbers
    from tilewright.workers.runners.triton.live_launch import interpreted

    class Properties(dict[str, Any]):
        __getattr__ = dict.__getitem__

    answers: dict[str, Any] = {
        "get_device_properties": lambda *_: Properties(device_numbers(part)), "current_device": lambda: 0,
        "get_device_capability": lambda *_: divmod(part["capability"], 10), "synchronize": lambda *_: None,
        "device": lambda *_: contextlib.nullcontext(), "device_of": lambda *_: contextlib.nullcontext(),
    }  # fmt: skip
    with contextlib.ExitStack() as stack:
        stack.enter_context(interpreted())
        for name, answer in answers.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, answer))
        stack.enter_context(
            mock.patch.object(torch.Tensor, "is_cuda", property(lambda t: t.device.type == "cpu"))
        )
        yield


def one(place: str, call: str, pallas: bool, left_out: list[str]) -> None:
    """Write the rows of a function."""
    from testkit import odd_calls, winners
    from tilewright.evolve.intake.child import part_of
    from tilewright.evolve.intake.winner import loaded_module
    from tilewright.fitness.targets import load_target
    from tilewright.workers.intake.source.load import package_of

    def tell(**row: Any) -> None:
        sys.stdout.write(json.dumps(row, default=repr) + "\n")
        sys.stdout.flush()

    file, _, name = place.rpartition(":")
    path = Path(file)
    made = (winners.pallas_winner if pallas else winners.triton_winner)(path, name, call)
    tell(facts=made.facts)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        written = Path(folder) / f"{made.name}.py"
        written.write_text(made.text, encoding="utf-8")
        if (package := package_of(path)) is not None:
            sys.meta_path.insert(0, package)
        if pallas:
            from jax.experimental.pallas import tpu

            from tilewright.workers.intake.pallas.original import on_chip

            stack.enter_context(on_chip({"kind": "TPU7x", "cores": 1}))
            stack.enter_context(tpu.force_tpu_interpret_mode(tpu.InterpretParams()))
        else:
            stack.enter_context(_device(part_of(load_target("interpreter"))))
        module = loaded_module(written)
        original = module.tilewright_original(module.SERVED)
        calls, look = (
            (odd_calls.odd_array_calls, odd_calls.array_outcome)
            if pallas
            else (odd_calls.odd_calls, odd_calls.outcome)
        )

        def cases() -> Iterator[odd_calls.Case]:
            for case in calls(original, made.made):
                if case[0] not in left_out:
                    tell(begun=case[0])
                    yield case

        for case, sides, served in odd_calls.compared(module, made.name, original, cases(), look):
            tell(case=case, sides=[str(side)[:400] for side in sides], served=served)


if __name__ == "__main__":
    one(*sys.argv[2:4], sys.argv[4] == "1", sys.argv[5:]) if sys.argv[1] == "one" else main()
