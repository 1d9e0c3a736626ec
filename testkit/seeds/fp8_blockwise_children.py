"""Seed kernels of the blockwise family in Triton's interpreter.

Triton reads TRITON_INTERPRET when a kernel is decorated, so this program runs in a process of its own.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import tempfile
from pathlib import Path
from types import ModuleType

import ml_dtypes
import numpy as np
import torch

from tilewright.seeds.gemm_fp8_blockwise.operator import operators
from tilewright.seeds.operator import Arrays, TensorSpec, Workload

TORCH = {
    "int32": (torch.int32, torch.int32, np.int32),
    "bfloat16": (torch.bfloat16, torch.int16, np.int16),
    "float8_e4m3fn": (torch.float8_e4m3fn, torch.uint8, np.uint8),
    "float32": (torch.float32, torch.float32, np.float32),
}


def module_of(source: str) -> ModuleType:
    """The kernel module with this source, from a real file, which Triton's parser wants."""
    path = Path(tempfile.mkdtemp()) / "kernel.py"
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("kernel_under_test", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def to_torch(array: np.ndarray, spec: TensorSpec) -> torch.Tensor:
    dtype, bits, raw = TORCH[spec.dtype]
    return torch.from_numpy(np.ascontiguousarray(array).view(raw).copy()).view(bits).view(dtype)


def to_numpy(tensor: torch.Tensor, spec: TensorSpec) -> np.ndarray:
    _, bits, raw = TORCH[spec.dtype]
    array = tensor.contiguous().view(bits).numpy().view(raw)
    return array if spec.dtype in ("float32", "int32") else array.view(getattr(ml_dtypes, spec.dtype))


def launch(recipe: str, seed: str, params: dict, workload: Workload, kind: str) -> tuple[Arrays, Arrays]:
    """The kernel's outputs and the references of the operator's first oracle."""
    operator = operators()[recipe]
    module = module_of(operator.kernels[seed].source)
    inputs = operator.make_inputs(workload, 7, kind)
    tensors = {s.name: to_torch(inputs[s.name], s) for s in operator.inputs(workload)}
    full = {**module.DEFAULTS, **operator.kernels[seed].overrides, **params}
    results = module.launch(tensors, full)
    outputs = {s.name: to_numpy(t, s) for s, t in zip(operator.outputs(workload), results, strict=True)}
    references = operator.oracle(workload, inputs)
    reference = next(iter(references.values()))
    if "counted" in references:  # rows of no group may hold anything
        counts = references["counted"]
        outputs = {name: array[counts[name]] for name, array in outputs.items()}
        reference = {name: array[counts[name]] for name, array in reference.items()}
    return outputs, reference


def readings(outputs: Arrays, reference: Arrays) -> dict[str, float]:
    """Per output: SNR in dB for a product, the fraction of equal elements for a quantiser."""
    found = {}
    for name, wanted in reference.items():
        got = outputs[name]
        if wanted.dtype == np.float64:
            error = ((got.astype(np.float64) - wanted) ** 2).sum()
            found[name] = float(10 * np.log10((wanted**2).sum() / max(error, 1e-300)))
        else:
            width = got.dtype.itemsize
            same = got.view(f"u{width}") == np.ascontiguousarray(wanted).view(f"u{width}")
            found[name] = float(same.mean())
    return found


def interpret(cases: list[list]) -> None:
    """JSON lines with what ``readings`` says of each case."""
    for recipe, seed, params, dims, kind in cases:
        workload = Workload("case", dims)
        outputs, reference = launch(recipe, seed, params, workload, kind)
        sys.stdout.write(json.dumps([recipe, seed, params, kind, readings(outputs, reference)]) + "\n")


if __name__ == "__main__":
    interpret(json.loads(sys.argv[1]))
