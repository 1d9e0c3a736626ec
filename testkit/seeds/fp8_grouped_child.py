"""Run in a child by the tests of grouped products: the Gluon seed in the emulator, which installs itself for good.

    python -m testkit.seeds.fp8_grouped_child RECIPE PARAMS DIMS

Prints the SNR in dB over rows that count.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

from tilewright.fitness.gates import snr_db
from tilewright.seeds.gemm_fp8_blockwise.operator import operators
from tilewright.seeds.operator import Workload
from tilewright.workers.runners.gluon_emulator.install import install


def to_torch(array: np.ndarray) -> torch.Tensor:
    if array.dtype.itemsize == 1:
        return torch.from_numpy(array.view(np.uint8).copy()).view(torch.float8_e4m3fn)
    return torch.from_numpy(array.copy())


def main(recipe: str, params: str, dims: str) -> None:
    install(seed=3)
    operator = operators()[recipe]
    workload = Workload("w", json.loads(dims))
    path = Path(tempfile.mkdtemp()) / "kernel.py"
    path.write_text(operator.kernels["grouped"].source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("kernel_under_test", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    inputs = operator.make_inputs(workload, 5, "randn")
    references = operator.oracle(workload, inputs)
    given = {name: to_torch(array) for name, array in inputs.items()}
    (out,) = module.launch(given, {**module.DEFAULTS, **json.loads(params)})
    counts = references["counted"]["c"]
    decibels = snr_db(out.double().numpy()[counts], references["exact"]["c"][counts])
    sys.stdout.write(f"{decibels}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
