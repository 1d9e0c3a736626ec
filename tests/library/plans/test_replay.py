"""Replaying a plan: addresses, tensor maps, threads and contexts against a driver of our own here, bits on a GPU."""

import ctypes
import dataclasses
import struct
import subprocess
import threading
from collections import Counter
from pathlib import Path

import pytest

from tilewright.library.plans import driver, replay
from tilewright.library.plans.format import Fill, Launch, Output, Plan, Pointer, Scalar, Tensor, TensorMap
from tilewright.library.plans.replay import MOST_MAPS, Ready

PTX = """
.version 8.3
.target sm_90a
.address_size 64
.visible .entry kernel(.param .u64 out, .param .u64 in, .param .u32 n, .param .align 64 .b8 map[128]) {
  .reg .b64 %rd<4>;
  .reg .b32 %r<2>;
  ld.param.u64 %rd1, [out];
  ld.param.u32 %r1, [n];
  st.global.u32 [%rd1], %r1;
  ret;
}
"""


def assembled(folder, text):
    triton = pytest.importorskip("triton")
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas"
    (folder / "k.ptx").write_text(text)
    subprocess.run([tool, "-arch=sm_90a", folder / "k.ptx", "-o", folder / "k.cubin"], check=True)
    return (folder / "k.cubin").read_bytes()


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    """One fill and one launch over an input of 1 KiB and an output."""
    code = assembled(tmp_path_factory.mktemp("ptx"), PTX)
    over_input = TensorMap(0, 0, 7, (16, 16), (64,), (8, 8), 0, False)
    launch = Launch(
        0,
        "kernel",
        (3, 1, 1),
        4,
        64 << 10,
        (Pointer(1, 16), Pointer(0, 0), Scalar(4, 77), over_input),
        cluster=2,
        programmatic=True,
    )
    return Plan(
        architecture=90,
        inputs=(Tensor("x", "float32", (16, 16)),),
        outputs=(Output("y", "float32", (16, 16), buffer=0, offset=0),),
        buffers=(1024,),
        steps=(Fill(1, 0, 1024, 5, 4), launch, launch),
        codes=(code,),
    )


class Library:
    """The calls that replaying makes, without a device: remembers what each thread asked for."""

    HERE = 0x5000

    def __init__(self):
        self.seen = threading.local()
        self.calls: Counter[str] = Counter()
        self.encoded: list[int] = []
        self.lowered: list[tuple[int, int]] = []

    def __getattr__(self, name):
        """A call of the driver's: counted, and answered by the method of that name below or with success."""
        if not name.startswith("cu"):
            raise AttributeError(name)

        def call(*arguments):
            self.calls[name] += 1
            made = getattr(self, "_" + name, None)
            return made(*arguments) if made is not None else 0

        return call

    def context(self):
        return getattr(self.seen, "context", 0)

    def _cuDevicePrimaryCtxRetain(self, found, device):
        found._obj.value = self.HERE
        return 0

    def _cuCtxGetCurrent(self, found):
        found._obj.value = self.context()
        return 0

    def _cuCtxPushCurrent_v2(self, context):
        self.seen.before, self.seen.context = self.context(), context.value
        return 0

    def _cuCtxPopCurrent_v2(self, found):
        self.seen.context = self.seen.before
        return 0

    def _cuModuleLoadData(self, found, code):
        found._obj.value = 0x77
        return 0 if self.context() == self.HERE else 201

    def _cuModuleGetFunction(self, found, module, name):
        found._obj.value = 0x88
        return 0 if (module.value, name) == (0x77, b"kernel") else 500

    def _cuFuncGetParamInfo(self, function, number, offset, size):
        sizes = (8, 8, 4, 128)
        if number >= len(sizes):
            return 1
        size._obj.value = sizes[number]
        return 0

    def _cuFuncGetAttribute(self, found, attribute, function):
        found._obj.value = 48 << 10 if attribute == driver.SHARED_BYTES else 0
        return 0

    def _cuFuncSetAttribute(self, function, attribute, value):
        self.lowered.append((attribute, value))
        return 0

    def _cuTensorMapEncodeTiled(self, made, dtype, rank, address, *rest):
        if self.context() != self.HERE:
            return 201
        self.encoded.append(address.value)
        made[:8] = struct.pack("<Q", address.value)
        assert ctypes.addressof(made) % 64 == 0
        return 0

    def _cuMemsetD32Async(self, address, pattern, count, stream):
        self.seen.filled = (address, pattern, count, stream)
        return 0

    def _cuLaunchKernelEx(self, config, function, parameters, extra):
        if self.context() != self.HERE:
            return 201
        held = config._obj
        read = [ctypes.string_at(parameters[n], size) for n, size in enumerate((8, 8, 4, 128))]
        attributes = {held.attributes[n].id: list(held.attributes[n].value)[:3] for n in range(held.count)}
        made = ([int.from_bytes(r[:8], "little") for r in read], list(held.grid), held.stream or 0, attributes)
        self.seen.launched = [*getattr(self.seen, "launched", []), made]
        return 0


@pytest.fixture
def library(monkeypatch):
    made = Library()
    monkeypatch.setattr(driver, "function", made.__getattr__)
    driver.primary_context.cache_clear()
    yield made
    driver.primary_context.cache_clear()


def test_addresses_numbers_and_maps_reach_the_kernel(library, plan):
    ready = Ready(plan)
    assert library.lowered == [(driver.SHARED_BYTES, 64 << 10)] * 2
    ready([0x1000, 0x2000], 9)
    assert library.seen.filled == (0x2000, 5, 256, 9)
    first, second = library.seen.launched
    assert first[:3] == ([0x2010, 0x1000, 77, 0x1000], [6, 1, 1], 9), "the grid is counted in CTAs"
    assert first[3] == {driver.CLUSTER: [2, 1, 1], driver.CLUSTER_POLICY: [driver.SPREAD, 0, 0], **first[3]}
    assert second[3][driver.PROGRAMMATIC][0] == 1


@pytest.mark.parametrize(
    ("ahead", "overlaps", "programmatic"),
    [
        ("griddepcontrol.wait;", True, True),
        ("griddepcontrol.wait;", False, False),
        ("", True, False),
        ("ld.global.u32 %r1, [%rd1]; griddepcontrol.wait;", True, False),
        ("setp.eq.u32 %p, %r1, 0; @%p griddepcontrol.wait;", True, False),
        ("setp.eq.u32 %p, %r1, 0; @%p bra OVER; griddepcontrol.wait; OVER:", True, False),
    ],
    ids=["waits", "not asked for", "waits never", "reads before", "waits at times", "passes it by"],
)
def test_a_first_launch_overlaps_only_where_its_kernel_waits_first(
    library, plan, tmp_path, ahead, overlaps, programmatic
):
    text = PTX.replace("%r<2>;", "%r<2>; .reg .pred %p;").replace("  st.global", f"  {ahead}\n  st.global")
    alone = dataclasses.replace(plan, steps=plan.steps[1:], codes=(assembled(tmp_path, text),))
    Ready(alone, overlaps=overlaps)([0x1000, 0x2000], 9)
    first, second = library.seen.launched
    assert (driver.PROGRAMMATIC in first[3]) == programmatic and driver.PROGRAMMATIC in second[3]


def test_a_map_is_encoded_once_for_an_address_and_few_are_remembered(library, plan):
    ready = Ready(plan)
    for _ in range(3):
        for address in (0x1000, 0x3000):
            ready([address, 0x2000], 0)
            assert library.seen.launched[-1][0][3] == address
    assert Counter(library.encoded) == {0x1000: 1, 0x3000: 1}
    for number in range(2 * MOST_MAPS):
        ready([0x10000 + 16 * number, 0x2000], 0)
    assert len(ready._maps._known) == MOST_MAPS
    ready([0x1000, 0x2000], 0)
    assert library.encoded.count(0x1000) == 2, "forgotten, and encoded again"


def test_threads_without_a_context_get_one_and_lose_it(library, plan):
    ready = Ready(plan)
    faults: list[object] = []

    def calls(number):
        try:
            for turn in range(200):
                own = [0x1000 * (number + 1), 0x100000 + 0x1000 * number + 16 * (turn % 3)]
                ready(own, number)
                pointers, _, stream, _ = library.seen.launched.pop()
                if pointers != [own[1] + 16, own[0], 77, own[0]] or stream != number or library.context():
                    faults.append((number, pointers, stream))
        except Exception as error:  # noqa: BLE001 - a thread's error is its test's
            faults.append(error)

    threads = [threading.Thread(target=calls, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    library.seen.context = Library.HERE
    before = library.calls["cuCtxPushCurrent_v2"]
    ready([0x1000, 0x2000], 0)
    assert library.calls["cuCtxPushCurrent_v2"] == before, "its own context is not pushed again"


@pytest.mark.parametrize("addresses", [[0x1000], [0x1000, 0x2000, 0x3000], [0x1000, 0x2008], []])
def test_addresses_that_do_not_fit_are_refused(library, plan, addresses):
    ready = Ready(plan)
    with pytest.raises(ValueError, match="address"):
        ready(addresses, 0)
    assert not library.calls["cuLaunchKernelEx"]


def test_the_folder_works_alone(tmp_path, plan):
    """As it is shipped: under another name, without the project, torch, numpy or Triton."""
    import shutil
    import sys

    shutil.copytree(Path(replay.__file__).parent, tmp_path / "shipped")
    (tmp_path / "one.plan").write_bytes(plan.to_bytes())
    program = (
        "import sys; from shipped.format import Plan; import shipped.replay; "
        "print(Plan.from_bytes(open('one.plan', 'rb').read()).digest); "
        "assert not {'torch', 'numpy', 'triton', 'workers', 'tilewright'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == plan.digest
