"""The runner that launches plans, on honest and hostile ones. A processor of our own stands in for a GPU: it runs the
Python kernel that a plan names.
"""

import ctypes
from collections.abc import Callable

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tilewright.library.plans.format import Output, Plan, Tensor  # noqa: E402
from tilewright.workers.child.frames import Frame  # noqa: E402
from tilewright.workers.runners.triton import plan_runner, tensors  # noqa: E402
from tilewright.workers.runners.triton.clock import CpuClock  # noqa: E402
from tilewright.workers.runners.triton.launch_guard import poison  # noqa: E402

SHAPE = (16, 32)
SIZE = 4 * 16 * 32
Kernel = Callable[[list[int]], None]


def plan_of(tag, buffers=(SIZE,)):
    """A plan without steps: the processor runs the kernel of this name for it."""
    output = Output("y", "float32", SHAPE, buffer=0, offset=0)
    return Plan(90, (Tensor("x", "float32", SHAPE),), (output,), buffers, (), (), {"kernel": tag})


class Processor:
    """Has the members of ``plan_runner.Device``."""

    def __init__(self, kernels):
        self.kernels, self.scrubbed, self.released = kernels, 0, 0

    def stream(self):
        return 0

    def codes(self):
        return self

    def close(self):
        return

    def ready(self, plan, codes):
        kernel = self.kernels[plan.toolchain["kernel"]]

        def launch(addresses, stream):
            kernel(addresses)

        launch.plan, launch.place = plan, len
        return launch

    def scrub(self):
        self.scrubbed += 1

    def release(self):
        self.released += 1


def at(address, count=SIZE // 4):
    """The floats there."""
    return np.ctypeslib.as_array((ctypes.c_float * count).from_address(address))


def doubled(addresses):
    at(addresses[1])[:] = 2 * at(addresses[0])


class Runner(plan_runner.Runner):
    def __init__(self, **kernels):
        torch.set_default_device("cpu")
        self.processor = Processor(kernels)
        self._start("cpu", CpuClock(), self.processor)


def described(name):
    return {"name": name, "shape": list(SHAPE), "dtype": "float32"}


WORKLOAD = {"id": "w", "inputs": [described("x")], "outputs": [described("y")]}


def served(runner, kind, *tags, workload=WORKLOAD, plan=None, **changes):
    """Answers to a job on a workload; ``plan`` are the bytes sent in the place of a plan's."""
    rng, name = np.random.default_rng(3), workload["id"]
    arrays = {f"{name}/{place}x": rng.standard_normal(SHAPE, np.float32) for place in ("gauss/", "")}
    data = {"entries": [{"id": tag} for tag in tags], "workloads": [workload], "seed": 5, "rounds": 2, "calls": 3}
    data["check"] = [{"workload": name, "kinds": ["gauss"]}]
    blobs = {f"plan/{tag}/{name}": plan or plan_of(tag, **changes).to_bytes() for tag in tags}
    found: list[Frame] = []
    runner.run(Frame(kind, data, arrays, blobs), found.append)
    return [frame for frame in found if frame.kind != "alive"]


def test_an_honest_plan_is_checked_and_timed():
    runner = Runner(doubled=doubled)
    (checked,) = served(runner, "check", "doubled")
    assert checked.kind == "checked" and not checked.data["inputs_changed"]
    rng = np.random.default_rng(3)
    assert np.array_equal(checked.arrays["y"], 2 * rng.standard_normal(SHAPE, np.float32))
    (timed,) = served(runner, "time", "doubled", "doubled")
    calls = [[len(calls) for calls in entry] for entry in timed.data["rounds"]]
    assert timed.kind == "timed" and calls == [[3, 3]] * 2
    wanted = 2 * rng.standard_normal(SHAPE, np.float32)
    assert np.array_equal(timed.arrays["0/y"], wanted) and np.array_equal(timed.arrays["1/y"], wanted)
    assert runner.processor.scrubbed >= 14 and runner.processor.released == 1


def test_buffers_move_and_hold_nothing_of_an_earlier_call():
    seen: list[tuple[int, set[int]]] = []

    def watching(addresses):
        held = [np.ctypeslib.as_array((ctypes.c_uint8 * SIZE).from_address(a)) for a in addresses[1:]]
        seen.append((addresses[1], {int(byte) for bytes_ in held for byte in np.unique(bytes_)}))
        doubled(addresses)
        at(addresses[2])[:] = at(addresses[1])

    runner = Runner(watching=watching)
    (timed,) = served(runner, "time", "watching", buffers=(SIZE, SIZE))
    assert timed.kind == "timed"
    # a guarded call, and two rounds of three
    assert len(seen) == 1 + 2 * 3 and all(len(fresh) == 1 for _, fresh in seen)
    assert len({address for address, _ in seen}) > 2
    drawn = {poison() for _ in range(200)}
    assert 0xFF in drawn and len(drawn) > 20, "memory looks another way each time"


def partly(addresses):
    at(addresses[1])[:256] = 2 * at(addresses[0])[:256]


def beside(addresses):
    doubled(addresses)
    at(addresses[1] + SIZE, 1)[:] = 1.0


def before(addresses):
    doubled(addresses)
    at(addresses[1] - 4, 1)[:] = 1.0


def into_input(addresses):
    doubled(addresses)
    at(addresses[0], 1)[:] = 1.0


def test_what_a_part_of_the_grid_leaves_out_is_one_byte_by_lot():
    for kind, name in (("check", "y"), ("time", "0/y")):
        (answer,) = served(Runner(partly=partly), kind, "partly")
        left = answer.arrays[name].reshape(-1)[256:]
        assert len(np.unique(left.view(np.uint8))) == 1


@pytest.mark.parametrize("kernel", [beside, before])
@pytest.mark.parametrize("kind", ["check", "time"])
def test_a_write_beside_a_buffer_is_found_out(kernel, kind):
    (error,) = served(Runner(wrong=kernel), kind, "wrong")
    assert error.kind == "error" and error.data["type"] == "OutsideWrite" and error.data["spoiled"]


def test_a_write_to_an_input_is_told():
    (checked,) = served(Runner(wrong=into_input), "check", "wrong")
    assert checked.data["inputs_changed"]
    (timed, *_) = served(Runner(wrong=into_input), "time", "wrong")
    assert timed.data["inputs_changed"]


def test_a_write_to_operands_of_another_workload_is_found_out():
    runner = Runner(doubled=doubled)
    kept: list[int] = []

    def elsewhere(addresses):
        doubled(addresses)
        at(kept[0], 1)[:] = 7.0

    def noting(addresses):
        kept.append(addresses[0])
        doubled(addresses)

    runner.processor.kernels.update(noting=noting, elsewhere=elsewhere)
    served(runner, "time", "noting")
    *_, error = served(runner, "time", "elsewhere", workload={**WORKLOAD, "id": "v"})
    assert error.kind == "error" and "operands of other workloads" in error.data["message"]


def test_a_plan_for_other_tensors_or_damaged_is_refused():
    runner = Runner(doubled=doubled)
    other = {**WORKLOAD, "outputs": [{**described("y"), "shape": [32, 16]}]}
    *_, error = served(runner, "check", "doubled", workload=other)
    assert error.kind == "error" and "not for the tensors of w" in error.data["message"]
    *_, error = served(runner, "check", "doubled", plan=b"TWPLAN01")
    assert error.data["type"] == "PlanError"


def test_one_byte_of_a_large_tensor_and_lines_that_change_places_change_its_sum():
    octets = torch.randint(0, 255, (tensors.FOLDS * tensors.FOLDED + 37,), dtype=torch.uint8)
    sums = tensors.Checksums("cpu")
    sums._device = "cpu:0"  # as a device's: large ones are folded
    others = [octets.clone() for _ in range(4)]
    for other, place in zip(others, (0, tensors.FOLDED + 5, -1), strict=False):
        other[place] ^= 1
    others[3][: 2 * tensors.FOLDED] = octets[: 2 * tensors.FOLDED].roll(tensors.FOLDED)
    found = [sums.of({"x": one})[0] for one in (octets, octets.clone(), *others)]
    assert found[0] == found[1] and len(set(found)) == 5
