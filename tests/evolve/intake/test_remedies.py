"""What to do about each refusal."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tilewright.evolve.intake.remedies import _REMEDIES, refused, remedy

SAID = (
    "--reference: torch.sofmax names nothing",
    "NUMBER of mine.py is no function",
    "the call raises TypeError: empty_like(): argument 'input' (position 1) must be Tensor, not DynamicJaxprTracer",
    "torch computes sort outside a kernel",
    "the wrapper reads a tensor's values (item)",
    "a grid is worked out from a tensor's values",
    "Layer cannot be made without arguments: missing 'share'",
    "torch.empty_like makes a tensor that is not contiguous",
    "the call launches no Triton kernel",
    "scale is a kernel, and how it is launched is not said: name the function that launches it",
    "import of numpy",
    "the device library's function j0",
    "the name triton.language.inline_asm_elementwise",
    "the name triton.language.random",
    "the name TABLE is not defined here",
    "the name _x starts with an underscore",
    "the builtin name max is bound",
    "the imported name tl is bound",
    "the attribute data",
    "the keyword argument stream",
    "a try statement",
    "the decorator something(3)",
    "a module-level constant is a number, a string, a dtype or a tuple of them",
    "a matrix product outside a kernel",
    "the reference returns a result of shape [3], and the call makes none (none)",
    "the reference cannot be called with these arguments: TypeError",
    "the kernel agrees with the reference on no small shape: 7x70: result 0 is 3.0 dB from the reference",
    "the kernel agrees with the reference on no small shape: 7x70: result 0 overflows: float16 holds up to 65504, and",
    "a checked shape takes more than 12 s in the interpreter, on a machine as busy as this",
    "the kernel's own answer is not the reference's: result 0",
    "a result's size 7 follows from no dimension of the arguments",
    "the constant accumulator is a function",
    "mine.py defines no softmax",
    "the call raises ModuleNotFoundError: No module named 'vllm'",
    "the call raises ValueError: two dimensions",
    "0 functions called launch",
    "** in a call of anything but BlockSpec",
    "a default argument of f that is not a constant",
    "an annotation of x",
    "not Python: invalid syntax",
)


@pytest.mark.parametrize(("pattern", "advice"), _REMEDIES)
def test_each_remedy_is_what_some_refusal_gets(pattern: str, advice: str) -> None:
    found = [what for what in SAID if (first := _first(what)) is not None and first == pattern]
    assert found, f"no refusal of this list gets: {advice}"
    assert all(remedy(what).split(" ")[0] == advice.split(" ")[0] for what in found)


def _first(what: str) -> str | None:
    return next((pattern for pattern, _ in _REMEDIES if re.search(pattern, what)), None)


@pytest.mark.parametrize("what", SAID)
def test_no_refusal_goes_without_a_remedy_of_its_own(what: str) -> None:
    (told,) = refused([{"line": 3, "what": what}], "mine.py")
    assert not told.remedy.startswith("see docs") and told.text().startswith("mine.py:3: ")


def test_a_benchmarks_problem_with_weights_is_told_what_to_do(tmp_path: Path) -> None:
    import torch

    from tilewright.workers.intake.formats.template import read
    from tilewright.workers.intake.judge.reference import function_of

    path = tmp_path / "level1_23.py"
    path.write_text(
        "import torch\n\n\nclass Model(torch.nn.Module):\n    def __init__(self, dim):\n        super().__init__()\n"
        "        self.dim, self.w = dim, torch.nn.Parameter(torch.ones(3))\n\n    def forward(self, x, n):\n"
        "        return torch.softmax(x * self.w, self.dim)\n\n\ndef get_inputs():\n"
        "    return [torch.rand(9, 3), torch.randint(0, 1, (4,))]\n\n\ndef get_init_inputs():\n    return [1]\n"
    )
    problem = read(path)
    assert (problem.call, "weights" in problem.why) == ("f32[9, 3], i64[4] < 1", True)
    x = torch.randn(2, 3, dtype=torch.float64)
    found = function_of(f"{path}:Model")(x, None)
    assert found.dtype == torch.float64 and torch.equal(found, torch.softmax(x, 1))
