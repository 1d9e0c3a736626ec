"""What to do about a refusal, by what it says."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_REMEDIES: Sequence[tuple[str, str]] = (
    (r"^--reference: ", "write module.name, such as torch.softmax, or FILE.py:function, of plain torch or JAX"),
    (r"returns no function$", 'name one of those that it returns: FILE:make()["name"], or FILE:make()[0]'),
    (r"is no function$", "name a function at the file's module level, or Class.method"),
    (r"must be Tensor, not \w*Tracer|not a valid JAX type", "a TPU takes Pallas functions, this one is torch's: use "
     "--target cuda, or interpreter"),
    (r"torch\.Tensor.* and was passed to the function", "a GPU's target takes Triton functions, this one is JAX's: "
     "use --target tpu7x"),
    (r"^torch computes (\S+)", "do it in the kernel, or before the call and pass the result as an argument"),
    (r"reads a tensor's values", "pass the value as a plain argument of the call"),
    (r"a tensor that is not contiguous", "allocate it contiguous and give the kernel its strides"),
    (r"launches no \w+ kernel", "name the function that launches the kernel, with arguments that take it there"),
    (r"unbound axis name|several devices", "name the function that one device runs; kernels of several are not taken"),
    (r"does what no candidate may", "compute that before or after the call, and name the function around the kernel "
     "alone"),
    (r"does not lower for", "give shapes that the kernel takes on a TPU, or the --target it is written for"),
    (r"an answer that is not finite", "give inputs on which it is: --args 'f32[8] * 0.01', or a real call's: --call"),
    (r"of at most \d+ that are interpreted", "give a smaller call, which is checked as it is"),
    (r"modelled for .*(outside|HLO|from a kernel|calls )", "name the function around the kernel alone, and "
     "compute the rest before or after the call"),
    (r"modelled for .*(grid|branch|loop|position|control flow)", "let int32 operands of at most 4096 values decide "
     "it, and give those of a real call: --call FILE"),
    (r"is a kernel, and how it is launched is not said in C", "write a host function that launches it below it, and "
     "name that (docs/cuda.md)"),
    (r"is a kernel, and how it is launched is not said", "name its wrapper: FILE:wrapper"),
    (r"import of|import from|import inside", "import only torch, triton, triton.language; write constants out"),
    (r"device library's function (\S+)", "write it with triton.language (exp, exp2, log2, erf, sqrt, rsqrt, sin, cos)"),
    (r"^inline assembly", "write it with triton.language, or guard it by a constexpr that is off"),
    (r"inline_asm|device_assert|device_print", "leave it out, or guard it by a constexpr that is off"),
    (r"the name triton\.language\.(random)", "draw the numbers before the call and pass them"),
    (r"the name (\S+) is not defined", "define {1} as a function here, or import it; classes are not taken"),
    (r"the name (\S+) starts with an underscore", "call it {1} without the underscore"),
    (r"the builtin name (\S+) is bound", "give {1} another name"),
    (r"the imported name (\S+) is bound", "give the variable {1} another name"),
    (r"the attribute (\S+)", "call a function of triton.language, or pass the value as an argument"),
    (r"the keyword argument (\S+)", "pass it by position, or leave it out"),
    (r"a class|a try statement|a with statement|a global|async|a generator|a del statement|a match",
     "kernels and launch are plain functions: move it out of them"),
    (r"the decorator", "decorate with triton.jit or jax.jit alone; configurations go to SPACE"),
    (r"module-level constant|may stand at module level|assigns constants",
     "keep imports, constants and functions at module level; compute the rest in launch"),
    (r"a matrix product outside a kernel", "compute it in the kernel with tl.dot"),
    (r"reference returns a result of shape", "make the reference return what the call returns, in its order"),
    (r"reference cannot be called", "write a function of the same arguments and give it: --reference FILE:name"),
    (r"takes more than \d+ s in the interpreter, on", "try again when less else runs"),
    (r"overflows: \S+ holds up to", "give smaller operands, as in --args 'f32[4096] * 0.01'"),
    (r"agrees with the reference on no small shape.* of its integers", "make sure both compute the same; of equal "
     "values an index may name another one: float32 operands have fewer"),
    (r"agrees with the reference on no small shape.*Revisited block", "come back to a block of a result in the next "
     "step alone, or give sizes at which the kernel does"),
    (r"agrees with the reference on no small shape", "make sure both compute the same and the kernel masks tails"),
    (r"own answer is not the reference's", "correct the kernel or the reference, or give the precision you mean"),
    (r"dimension of the arguments", "let the sizes of the results follow from those of the arguments"),
    (r"cannot be made without arguments", "name a function, or give the file get_init_inputs"),
    (r"(worked out|computed) from a tensor's values|takes a size from a tensor's values",
     "give the number to the function as a plain argument"),
    (r"the constant \w+ is a", "write its value into the kernel, or pass it as an argument"),
    (r"defines no", "name a function at the file's module level, or Class.method"),
    (r"ModuleNotFoundError|is not there", "install what it imports, or move the function to a file of its own"),
    (r"the call raises SyntaxError", "run tilewright with the version of Python that it is written for"),
    (r"the call raises .*TPU ?v?\d", "it does not know this TPU: give the --target that it is written for, or its "
     "block sizes in the call"),
    (r"the call raises", "try the same call by itself, with every argument that has no default; a dictionary at the "
     "end of a call of --call holds its keywords"),
    (r"functions called (build|launch)", "a kernel module needs one {1}; else give FILE:function and --reference"),
    (r"\*\* in a call", "spell the keyword arguments out"),
    (r"default argument", "use a number, a string or None as the default"),
    (r"annotation", "leave the annotation out, or use tl.constexpr"),
    (r"host code in C\+\+", "write a host function that launches the kernels plainly, and name that (docs/cuda.md)"),
    (r"its C\+\+ defines no host", "name one of its host functions"),
    (r"neither argument nor made by the call", "pass it as an argument; a layer's weight is known by its name and "
     "shape in the reference"),
    (r"changes \w+, an argument|a result is an argument", "let the kernels write a tensor that the call makes"),
    (r"CUDA C\+\+", "give --reference, and --args or --call (docs/cuda.md)"),
    (r"not Python", "correct the syntax"),
)  # fmt: skip


@dataclass(frozen=True)
class Refused:
    """One reason with its place (``line`` 0: the whole) and what to do."""

    file: str
    line: int
    what: str
    remedy: str
    code: str = ""

    def text(self) -> str:
        place = f"{self.file}:{self.line}: " if self.line else f"{self.file}: " if self.file else ""
        return f"{place}{self.what}. Remedy: {self.remedy}."


def remedy(what: str) -> str:
    """What to do about a refusal of the intake or of the dialect."""
    for pattern, advice in _REMEDIES:
        found = re.search(pattern, what)
        if found:
            groups = found.groups()
            return advice.replace("{1}", groups[0].rstrip(":,;") if groups and groups[0] else "it")
    return "see docs/security.md for what a kernel module may hold"


def refused(found: Sequence[Mapping[str, Any]], file: str) -> list[Refused]:
    """Refusals as the child tells them, in the order of lines."""
    rows = [
        (str(f.get("file") or file), int(f["line"]), str(f["what"]), str(f.get("code", ""))) for f in found
    ]
    made = [Refused(place, line, what.rstrip("."), remedy(what), code) for place, line, what, code in rows]
    return sorted(made, key=lambda r: (r.file, r.line))
