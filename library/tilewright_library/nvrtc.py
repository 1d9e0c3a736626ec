"""CUDA C++ to a cubin by NVRTC: no toolkit, no host compiler, no device.

The compiler is the wheel ``nvidia-cuda-nvrtc``, called through ``cuda-bindings`` (the extra ``cuda``; torch's CUDA
builds bring both). Nothing is read beside the source but headers of CUDA and CUTLASS that are installed as wheels, and
those only if they are asked for.
"""

import functools
import importlib.metadata
import importlib.util
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NAME = "kernel.cu"
"""What the compiler calls a source in its messages."""

PACKAGE = "nvidia-cuda-nvrtc"

MOST_LOG = 4000
"""Characters of a compiler's log that an error keeps."""

SPECIFIC = (90, 100, 103, 120)
"""Compute capabilities whose own instructions (``wgmma``, ``tcgen05``) need the ``a`` behind the number."""

_ERROR = re.compile(rf"^{re.escape(NAME)}\((\d+)\): (?:catastrophic )?error(?: #\S+)?: (.*)$", re.M)
_ASSEMBLER = re.compile(r"^ptxas (?:\S+, line \d+; )?(?:error|fatal) *: (.*)$", re.M)
_HEADERS = ("cu13/include", "cu13/include/cccl", "cuda_runtime/include", "cuda_cccl/include")


class NoCompiler(RuntimeError):
    """NVRTC or its bindings are not installed. The message says what to install."""


class CompileError(RuntimeError):
    """Device code that does not compile: ``line 12: identifier "y" is undefined``. The compiler's log is a note."""

    def __init__(self, message: str, log: str) -> None:
        super().__init__(message)
        if log:
            self.add_note(log[-MOST_LOG:])


@dataclass(frozen=True)
class Compiled:
    """A cubin, the compiler's log, and the symbols of the kernels that were asked for."""

    code: bytes
    log: str
    symbols: tuple[str, ...]


def version() -> str:
    """Of the installed compiler; ``missing`` without one."""
    try:
        return importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return "missing"


def target(architecture: int) -> str:
    """``sm_90a`` for 90."""
    return f"sm_{architecture}{'a' if architecture in SPECIFIC else ''}"


@functools.lru_cache(maxsize=32)
def compiled(source: str, kernels: tuple[str, ...], architecture: int, options: tuple[str, ...]) -> Compiled:
    """Compile a source for an architecture (90 for 9.0).

    ``kernels``: names as the source says them, ``gemm`` or ``gemm<128, 4>``. The same arguments are compiled once in a
    process. Raises NoCompiler, CompileError.
    """
    nvrtc = _bindings()
    chosen = [f"--gpu-architecture={target(architecture)}", "--ptxas-options=-v", *options]
    program = _done(nvrtc, *nvrtc.nvrtcCreateProgram(source.encode(), NAME.encode(), 0, [], []))
    try:
        for name in kernels:
            _done(nvrtc, *nvrtc.nvrtcAddNameExpression(program, name.encode()))
        (status,) = nvrtc.nvrtcCompileProgram(program, len(chosen), [option.encode() for option in chosen])
        log = _bytes(nvrtc, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
        text = log.rstrip(b"\0").decode(errors="replace").strip()
        if int(status):
            raise CompileError(_complaint(text, str(status)), text)
        symbols = [_done(nvrtc, *nvrtc.nvrtcGetLoweredName(program, name.encode())) for name in kernels]
        code = _bytes(nvrtc, nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return Compiled(code, text, tuple(symbol.decode() for symbol in symbols))


def _bindings() -> Any:
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as error:  # pathfinder raises a RuntimeError for a missing library
        raise NoCompiler(
            "CUDA C++ kernels need NVRTC: pip install 'tilewright[cuda]' "
            f"(cuda-bindings and {PACKAGE}); {str(error).splitlines()[0]}"
        ) from error
    return nvrtc


def _done(nvrtc: Any, status: Any, *values: Any) -> Any:
    if int(status):
        raise CompileError(f"NVRTC refuses the program: {nvrtc.nvrtcResult(status).name}", "")
    return values[0] if values else None


def _bytes(nvrtc: Any, size_of: Any, read: Any, program: Any) -> bytes:
    data = bytes(_done(nvrtc, *size_of(program)))
    _done(nvrtc, *read(program, data))  # the bindings write into the bytes they are given
    return data


def _complaint(log: str, status: str) -> str:
    """The first error with its line; the assembler's where the front end had none."""
    found = _ERROR.search(log)
    if found is not None:
        return f"line {found[1]}: {found[2].strip()}"
    complaint = _ASSEMBLER.search(log)
    return complaint[1].strip() if complaint else (log.splitlines() or [status])[0]


def header_folders(wanted: Sequence[str]) -> list[str]:
    """Folders of installed headers: ``cuda`` (CUDA's and CCCL's) and ``cutlass``. Raises NoCompiler."""
    found: list[str] = []
    for name in wanted:
        module, places = {"cuda": ("nvidia", _HEADERS), "cutlass": ("cutlass_library", ("source/include",))}[name]
        spec = importlib.util.find_spec(module)
        roots = [Path(root) for root in (spec.submodule_search_locations or ())] if spec else []
        folders = [str(root / place) for root in roots for place in places if (root / place).is_dir()]
        if not folders:
            raise NoCompiler(
                f"the headers of {name} are not installed: pip install "
                + {"cuda": "nvidia-cuda-runtime nvidia-cuda-cccl", "cutlass": "nvidia-cutlass"}[name]
            )
        found += folders
    return found
