"""Runs Triton candidates through Triton's interpreter and Gluon ones through the emulator, on the CPU.

It checks their answers and times them, each job in a process of its own, which holds that job's inputs, no oracle, and
no other candidate's job. Job kinds: ``interpret.check``, ``interpret.time``, and ``interpret.hello``, which is answered
with ``ready``. Job data: ``runner_config``, and that of the kind.

The one measured device whose process runs a candidate's Python: interpreting needs it. Its times say nothing of any
kernel. Jobs and answers are those of ``workers.runners.triton.torch_runner``, entries are {id, source, params}.
"""

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import torch
import triton

from tilewright.workers.child.frames import Frame
from tilewright.workers.runners.device_runner import Answer
from tilewright.workers.runners.gluon_emulator.install import install as install_emulator
from tilewright.workers.runners.gluon_emulator.install import is_gluon
from tilewright.workers.runners.triton.clock import CpuClock, nothing
from tilewright.workers.runners.triton.interpreter_rounding import repair as repair_interpreter
from tilewright.workers.runners.triton.launch_guard import Canaries, LaunchGuard, poison
from tilewright.workers.runners.triton.tensors import Tensors, checked_results, load_module, torch_dtype
from tilewright.workers.runners.triton.torch_runner import Call, TorchDevice


class Runner(TorchDevice):
    """Serves ``check`` and ``time`` jobs. ``config``: ``product``."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        torch.set_default_device("cpu")
        # the CPU's allocator gives no memory a second time on demand: fresh memory is filled with NaN instead
        torch.set_deterministic_debug_mode("error")  # the other function for this imports the compiler: 6 s
        repair_interpreter()
        super().__init__("cpu", CpuClock())
        self.hello = {"torch": torch.__version__, "triton": triton.__version__, "device": config["product"]}
        self._modules: dict[str, ModuleType] = {}

    def _call(self, job: Frame, entry: Mapping[str, Any], workload: Mapping[str, Any], tensors: Tensors) -> Call:
        key = entry["source"]
        if key not in self._modules:
            if is_gluon(key):
                install_emulator()
            self._modules[key] = load_module(key)
        return _Interpreted(self._modules[key], entry["params"], workload, tensors)


class _Interpreted:
    """A candidate's module on one workload's operands."""

    def __init__(
        self, module: ModuleType, params: Mapping[str, Any], workload: Mapping[str, Any], tensors: Tensors
    ) -> None:
        self._module, self._params = module, params
        self._outputs, self._tensors = workload["outputs"], tensors

    def guarded(self, canaries: Canaries, rest: Callable[[], object] = nothing) -> Tensors:
        self.prepare()
        rest()
        with LaunchGuard(canaries):
            made = self()
        results = self.results(made)
        canaries.inspect()
        return results

    def prepare(self) -> None:
        """Leave bytes drawn by lot where the allocator will put the next outputs."""
        fill = poison()
        for made in [torch.empty(s["shape"], dtype=torch_dtype(s["dtype"])) for s in self._outputs]:
            made.view(-1).view(torch.uint8).fill_(fill)

    def inspect(self) -> None:
        return

    def __call__(self) -> Any:
        return self._module.launch(dict(self._tensors), dict(self._params))

    def results(self, made: Any) -> Tensors:
        return checked_results(made, self._outputs)


def prepare() -> None:
    """Load what torch and Triton load with their first use; children are forked from a process that has."""
    import triton.experimental.gluon.nvidia.hopper  # noqa: F401 - what a tensor's type is looked up in

    Runner({"product": ""})


def run(job: Frame, answer: Answer) -> None:
    """Serve one job."""
    runner = Runner(job.data["runner_config"])
    kind = job.kind.removeprefix("interpret.")
    if kind == "hello":
        answer(Frame("ready", runner.hello))
    else:
        runner.run(Frame(kind, job.data, job.arrays, job.blobs), answer)
