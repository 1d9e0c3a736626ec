"""Winners of functions compared with them on odd calls: on each they agree, or the original serves.

``python -m experiments.studies.tune.odd TABLE``: a line of TABLE is ``FILE:FUNCTION | CALL``, of Triton or of Pallas.
Each function is read in, its winner's module written with sizes that nobody has searched, and called beside the
original (``testkit.odd_calls``), in Triton's interpreter (with ``TRITON_INTERPRET=0`` on a GPU) or JAX's. A line of
JSON for each says how many calls were compared, how many the winner served, those that differ, and those at which the
original differs from itself. A call at which the original ends its process, or breaks its GPU's, is left out.
"""

import contextlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from unittest import mock

from testkit import ROOT


def row_of(place, call):
    """The row of a function; begun again without the call at which its process ended."""
    pallas = "pallas" in Path(place.rpartition(":")[0]).read_text(encoding="utf-8")
    more = {"JAX_PLATFORMS": "cpu"} if pallas else {"TRITON_INTERPRET": os.environ.get("TRITON_INTERPRET", "1")}
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, **more, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-m", __spec__.name, "one", place, call, str(int(pallas))]
    left_out = []
    while True:
        done = subprocess.run([*command, *left_out], env=environment, capture_output=True, text=True, cwd=ROOT)
        lines = [json.loads(row) for row in done.stdout.splitlines() if row.startswith("{")]
        begun = [row["begun"] for row in lines if "begun" in row]
        if done.returncode >= 0 or not begun:
            break
        left_out.append(begun[-1])
    why = "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["no reason"])[-1][:300]
    rows = [row for row in lines if "case" in row]
    served = [row["case"] for row in rows if row["served"]]
    differ = {row["case"]: row["sides"] for row in rows if row["sides"]}
    undefined = [row["case"] for row in rows if row["undefined"]]
    found = {"function": place, "call": call, "why": why, "left_out": left_out, "compared": len(rows)}
    return {**found, "facts": lines[:1], "served": served, "differ": differ, "undefined": undefined}


@contextlib.contextmanager
def _device():
    """While it is entered, what wrappers ask of a GPU is answered: kernels run in the interpreter, on the host."""
    import torch

    from tilewright.evolve.intake.child import part_of
    from tilewright.fitness.targets import load_target
    from tilewright.workers.intake.triton.stub_device import device_numbers
    from tilewright.workers.runners.triton.live_launch import interpreted

    class Properties(dict):
        __getattr__ = dict.__getitem__

        def __missing__(self, key):
            return "NVIDIA H200" if key == "name" else 1

    part = part_of(load_target("interpreter"))
    answers = {
        "get_device_properties": Properties(device_numbers(part)),
        "current_device": 0,
        "synchronize": None,
        "get_device_capability": divmod(part["capability"], 10),
        "device": contextlib.nullcontext(),
        "device_of": contextlib.nullcontext(),
    }
    with interpreted(), contextlib.ExitStack() as stack:
        for name, answer in answers.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, return_value=answer))
        is_here = property(lambda t: t.device.type == "cpu")
        stack.enter_context(mock.patch.object(torch.Tensor, "is_cuda", is_here))
        yield


def one(place, call, pallas, left_out):
    """Write the rows of a function."""
    from testkit import odd_calls, winners
    from tilewright.workers.intake.child_program import loaded_module
    from tilewright.workers.intake.source.load import package_of

    def tell(**row):
        sys.stdout.write(json.dumps(row, default=repr) + "\n")
        sys.stdout.flush()

    path, name = Path(place.rpartition(":")[0]), place.rpartition(":")[2]
    on_gpu = os.environ.get("TRITON_INTERPRET") == "0"
    taken = winners.pallas_winner if pallas else winners.triton_winner
    fork = multiprocessing.get_context("fork")  # torch registers little where a function was read in
    with ProcessPoolExecutor(1, fork, os.environ.__setitem__, ("TRITON_INTERPRET", "1")) as reader:
        text, own_name, made, facts = reader.submit(taken, path, name, call).result()
    tell(**facts)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        (Path(folder) / "winner.py").write_text(text, encoding="utf-8")
        sys.meta_path[:0] = filter(None, [package_of(path)])
        if pallas:
            from jax.experimental.pallas import tpu

            from tilewright.workers.intake.pallas.original import on_chip

            stack.enter_context(on_chip({"kind": "TPU7x", "cores": 1}))
            stack.enter_context(tpu.force_tpu_interpret_mode(tpu.InterpretParams()))
        elif on_gpu:
            of, made = made, lambda: odd_calls.tree_map_only(odd_calls.torch.Tensor, lambda t: t.cuda(), of())
        else:
            stack.enter_context(_device())
        module = loaded_module(Path(folder) / "winner.py")
        original = module.tilewright_original(module.SERVED)
        cases = (odd_calls.odd_array_calls if pallas else odd_calls.odd_calls)(original, made)
        rest = (tell(begun=case[0]) or case for case in cases if case[0] not in left_out)
        look = odd_calls.array_outcome if pallas else odd_calls.outcome
        for case, sides, served, undefined in odd_calls.compared(module, own_name, original, rest, look):
            told = [str(side)[:400] for side in sides]
            tell(case=case, sides=told, served=served, undefined=undefined)
            try:
                odd_calls.torch.cuda.synchronize() if on_gpu else None
            except RuntimeError:
                os.kill(os.getpid(), signal.SIGKILL)  # every later call of this process fails, too


def main():
    for line in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines():
        place, bar, call = line.partition(" | ")
        if bar:
            sys.stdout.write(json.dumps(row_of(place, call)) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    one(*sys.argv[2:4], sys.argv[4] == "1", sys.argv[5:]) if sys.argv[1] == "one" else main()
