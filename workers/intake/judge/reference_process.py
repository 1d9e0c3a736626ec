"""The process that runs references on a device, which is its argument.

It holds the user's own reference, or the original kernel where that is its own judge, and no candidate, ever, so that
its answers may be believed; the processes that launch candidates cannot see into its memory. Frames in, frames out:
``sample`` {operator, workload, turn, kind, seed} (see ``TakenOperator.elsewhere``) is answered by ``sampled`` with
arrays ``where/output/axis`` and ``due/reference/output``, or by ``failed`` {why}. A reference is believed on the device
once it says there what it says on the host, of a small shape; the original kernel is what it is there.
"""

import base64
import dataclasses
import functools
import os
import pickle
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from tilewright.seeds.operator import Workload
from tilewright.seeds.sampled import Sample, kind_tables, sampling
from tilewright.workers.child.frames import Frame, FrameReader, sender
from tilewright.workers.intake.judge.reference import LAUNCHED, function_of, is_jax, run_reference
from tilewright.workers.intake.judge.self_reference import SELF
from tilewright.workers.intake.operator import SampledOperator, TakenOperator
from tilewright.workers.runners.triton.tensors import DeviceElements, to_torch

LIMIT = 1 << 20
"""Most bytes of one question."""

ALIKE = {"float64": 1e-7, "float32": 1e-3, "": 3e-2}
"""By precision, how far two devices' answers may be apart, as a share of the largest one."""

ROOM_DB = 30.0
"""How far below the noise that a result may have theirs is in any case."""

CODES_ALIKE = 0.99
"""Share of integers and 8-bit floats that two devices must agree on: roundings turn."""


class Unlike(Exception):
    """A reference that says something else on the device. The message is one sentence."""


def main() -> None:
    """Answer questions until there are no more."""
    send = sender(os.dup(1))
    os.dup2(2, 1)
    sys.path.append(os.getcwd())
    device = sys.argv[1] if len(sys.argv) > 1 else "cuda"
    believed: set[str] = set()
    reader = FrameReader(LIMIT)
    try:
        send(_ready(device))
    except RuntimeError as error:
        send(_error_frame(error))
        return
    while data := os.read(0, 1 << 16):
        for frame in reader.feed(data):
            try:
                send(_sample_frame(frame.data, device, believed))
            except Exception as error:  # noqa: BLE001 - whatever the user's reference raises: the host is asked then
                send(_error_frame(error))
            if device != "cpu":
                torch.cuda.empty_cache()


def _ready(device: str) -> Frame:
    """Which device there is. Raises RuntimeError where there is none."""
    if device == "cpu":
        return Frame("ready", {})
    torch.backends.cudnn.allow_tf32 = False
    torch.zeros(1, device=device)
    return Frame("ready", {"identity": str(torch.cuda.get_device_properties().uuid)})


def _error_frame(error: Exception) -> Frame:
    return Frame("failed", {"why": f"{type(error).__name__}: {error}".splitlines()[0][:200]})


def _sample_frame(data: Mapping[str, Any], device: str, believed: set[str]) -> Frame:
    """Raises Unlike, and what the reference raises."""
    asked = data["operator"]
    # of the process that began this one
    operator: TakenOperator = pickle.loads(base64.b64decode(asked["operator"]))
    own, _, path = operator.reference.partition(":")
    if own == SELF:
        operator = dataclasses.replace(operator, reference=f"{LAUNCHED}:{path}")
    function = function_of(operator.reference)
    if is_jax(function):
        raise Unlike("a reference that speaks JAX runs on the host")
    with torch.device(device):
        if own != SELF and asked["operator"] not in believed:
            _compare(operator, function, device)
            believed.add(asked["operator"])
        kind = str(asked.get("kind", ""))
        workload = Workload(str(asked["workload"]), asked["dims"], int(asked["turn"]))
        if isinstance(operator, SampledOperator):
            elements = functools.partial(DeviceElements, device=device)
            tables = kind_tables(operator.tables(), kind)
            sample = sampling(operator, workload, int(data["seed"]), tables, elements)
        else:
            inputs = operator.make_inputs(workload, int(data["seed"]), kind)
            sample = Sample({}, operator.oracle(workload, {n: to_torch(a, device) for n, a in inputs.items()}))
    arrays = {f"due/{by}/{n}": a for by, found in sample.references.items() for n, a in found.items()}
    for name, axes in sample.where.items():
        arrays.update({f"where/{name}/{n}": np.asarray(axis) for n, axis in enumerate(axes)})
    return Frame("sampled", {"axes": {name: len(axes) for name, axes in sample.where.items()}}, arrays)


def _compare(operator: TakenOperator, function: Callable[..., Any], device: str) -> None:
    """Raises Unlike where host and device differ on the smallest checked shape, or there is none."""
    shapes = sorted((w for suite in operator.suites.values() for w in suite.check), key=operator.bytes)
    if not shapes:
        raise Unlike("there is no small shape to compare host and device on")
    inputs = operator.make_inputs(shapes[0], 1, "randn")
    with torch.device("cpu"):
        host = run_reference(function, operator.call, inputs, operator.precision)
    given = {name: to_torch(array, device) for name, array in inputs.items()}
    found = run_reference(function, operator.call, given, operator.precision)
    for result in operator.results:
        one, other = host[result.place], found[result.place]
        if one.shape != other.shape:
            raise Unlike(f"{result.name} has another shape on the device")
        if one.dtype.kind != "f":
            same = np.mean(one.view(np.uint8) == other.view(np.uint8)) if one.size else 1.0
            fine = bool(same >= CODES_ALIKE)
        else:
            far = np.abs(one - other).max(initial=0.0)
            # a reference may round to float32 itself, which two devices do not do alike
            share = max(ALIKE[operator.precision], 10 ** (-(result.min_db + ROOM_DB) / 20) if result.min_db else 0.0)
            fine = bool(far <= share * max(np.abs(one).max(initial=0.0), 1e-30))
        if not fine:
            raise Unlike(f"{result.name} is another on the device")


if __name__ == "__main__":
    main()
