"""What to do about each refusal."""

import pytest

from tilewright.evolve.intake.remedies import obstacles_of

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
    "scale is a kernel, and how it is launched is not said in C++",
    "host code in C++ is not followed: goto end;",
    "its C++ defines no host function f, but g",
    "a kernel is given a tensor that is neither argument nor made by the call",
    "a kernel changes x, an argument of the call",
    "CUDA C++ runs on a device alone: without --reference nothing says what is right",
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
    "the kernel agrees with the reference on no small shape: 7x64: result 1: 92.9% of its integers are the reference's",
    "a checked shape takes more than 12 s in the interpreter, on a machine as busy as this",
    "the kernel's own answer is not the reference's: result 0",
    "a result's size 7 follows from no dimension of the arguments",
    "the constant accumulator is a function",
    "mine.py defines no sofmax (did you mean softmax?)",
    "the call raises ModuleNotFoundError: No module named 'vllm'",
    "the call raises TypeError: of type <class 'torch.Tensor'> and was passed to the function at path x",
    "the call raises ValueError: two dimensions",
    "0 functions called launch",
    "** in a call of anything but BlockSpec",
    "a default argument of f that is not a constant",
    "an annotation of x",
    "not Python: invalid syntax",
)


@pytest.mark.parametrize("what", SAID)
def test_no_refusal_goes_without_a_remedy_of_its_own(what):
    (refusal,) = obstacles_of([{"line": 3, "what": what}], "mine.py")
    assert not refusal.remedy.startswith("see docs") and refusal.text().startswith("mine.py:3: ")
    assert "?." not in refusal.text()
