"""A version's kernels against their recipe, on the device here or interpreted.

``python -m <package>.checks [OPERATOR]`` needs NumPy, and torch or JAX. What to check stands in ``dispatch.json``.
Inputs are made with numpy, the reference is a float64 product of the dequantised operands (or, for quantisers, the
recipe's own bits). Families the package does not know are held against recorded answers in golden.npz.
"""

import functools
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from . import store

KINDS = ("randn", "outliers", "spread", "zero_blocks")
LEAST_DB = 45.0
INTERPRETED_CODES = 0.9
"""Share of e4m3 codes that must be equal under Triton's interpreter, which truncates its fp8 casts."""

INTERPRETED_DB = 22.0
"""The same against recorded codes: all of them truncated, each by up to an eighth, are 25 dB off."""

BLOCK = 128


def check(version: Path, target: str, dims: Mapping[str, int], kind: str, seed: int = 0) -> float:
    """The SNR in dB (or, for a quantiser, the share of equal codes) of the kernel that serves ``dims``.

    Raises AssertionError when it is too low, NotServed when nothing here can run the kernel.
    """
    _, dispatch = store.read_version(version)
    language = dispatch["targets"][target]["language"]
    runner = _on_jax if language == "pallas" else _on_torch
    return runner(version, dispatch["operator"], tuple(dims[name] for name in dispatch["dimensions"]), kind, seed)


def snr_db(output: np.ndarray, reference: np.ndarray) -> float:
    """10 log10(sum ref^2 / sum (ref - out)^2) in float64; NaN in the output gives NaN."""
    wanted = reference.astype(np.float64)
    noise = float(np.square(output.astype(np.float64) - wanted).sum())
    if noise == 0.0:
        return float("inf")
    return float(10.0 * np.log10(max(float(np.square(wanted).sum()), 1e-300) / noise))


def draw(rng: np.random.Generator, rows: int, cols: int, kind: str, block: tuple[int, int]) -> np.ndarray:
    """float32 [rows, cols]: normal; with outlier rows and columns; a magnitude a block; blocks of zeros."""
    x = rng.standard_normal((rows, cols), dtype=np.float32)
    grid = (-(-rows // block[0]), -(-cols // block[1]))

    def wide(factors: np.ndarray) -> np.ndarray:
        spread = np.repeat(np.repeat(factors.astype(np.float32), block[0], axis=0), block[1], axis=1)
        return spread[:rows, :cols]

    if kind == "outliers":
        x[rng.choice(rows, max(1, rows // 64), replace=False)] *= np.float32(64)
        x[:, rng.choice(cols, max(1, cols // 64), replace=False)] *= np.float32(64)
    elif kind == "spread":
        x *= wide(np.exp2(rng.integers(-12, 13, grid)))
    elif kind == "zero_blocks":
        x *= wide(rng.random(grid) < 0.5)
    return x


def draws(operator: str) -> bool:
    """Whether operands of an operator are drawn here; else a version brings recorded ones."""
    family, _, recipe = operator.partition("/")
    return family == "gemm_fp8_fused" or (family == "gemm_fp8_blockwise" and recipe.startswith(("gemm_nt", "quant_")))


def _require(value: float, least: float, what: str) -> float:
    if not value >= least:
        raise AssertionError(f"{what}: {value:.3f}, at least {least:g} needed")
    return value


# -- Pallas ------------------------------------------------------------------------------------------


def _on_jax(version: Path, operator: str, dims: tuple[int, ...], kind: str, seed: int) -> float:
    table, call = _compiled(version, dims)
    operands, wanted = _golden(version) if kind == "golden" else _fused(table, dims, kind, seed)
    found = call(*operands)
    results = found if isinstance(found, tuple | list) else [found]
    readings = [snr_db(np.asarray(out), ref) for out, ref in zip(results, wanted, strict=True)]
    return _require(min(readings), LEAST_DB, f"{operator} on {kind}, dB")


@functools.lru_cache(maxsize=4)
def _compiled(version: Path, dims: tuple[int, ...]) -> tuple[store.Table, Any]:
    """Traced once for all kinds of inputs."""
    import jax

    from . import jax_operators

    interpret = jax.devices()[0].platform != "tpu"
    table = store.version_table(version, jax_operators.device_key(interpret))
    return table, jax.jit(jax_operators.load(table.choose(dims).kernel, interpret))


def _fused(table: store.Table, dims: tuple[int, ...], kind: str, seed: int) -> tuple[list[Any], list[np.ndarray]]:
    import jax.numpy as jnp

    from . import jax_operators

    (m, n, k), group = dims, int(table.constants["group"])
    rng = np.random.default_rng([seed, KINDS.index(kind)])
    a = jnp.asarray(draw(rng, m, k, kind, (1, group))).astype(jnp.bfloat16)
    w, sw = jax_operators.quantise_weights(jnp.asarray(draw(rng, k, n, kind, (group, BLOCK))), group)
    q, s = jax_operators.quantise_activations(a, group)
    left = np.asarray(q).astype(np.float64) * np.repeat(np.asarray(s, np.float64), group, axis=1)
    right = np.asarray(w).astype(np.float64) * np.repeat(np.asarray(sw, np.float64)[:, 0], group, axis=0)
    return [a, w, sw], [left @ right]


def _golden(version: Path) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Operands and references recorded at promotion, bits and dtypes apart (numpy does not know bfloat16)."""
    import ml_dtypes

    receipt = store.read_receipt(version)
    store.read_checked(version / "golden.npz", receipt["files"]["golden.npz"])
    with np.load(version / "golden.npz") as kept:
        names = sorted(kept.files)
        arrays = {name: kept[name] for name in names}

    def typed(prefix: str) -> list[np.ndarray]:
        chosen = [name for name in names if name.startswith(prefix)]
        dtypes = [name.split("|")[1] for name in chosen]
        return [arrays[n].view(getattr(ml_dtypes, t, t)) for n, t in zip(chosen, dtypes, strict=True)]

    return typed("in"), typed("out")


# -- Triton and Gluon --------------------------------------------------------------------------------


def _on_torch(version: Path, operator: str, dims: tuple[int, ...], kind: str, seed: int) -> float:
    import torch

    from . import torch_contract, torch_launch

    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    key = torch_launch.device_key(device)
    table = store.version_table(version, key)
    if table.fault is not None:
        raise store.NotServed(f"{operator}: {table.fault}")
    call = torch_launch.from_source(table.choose(dims).kernel, table.operands, dims, device)
    if kind == "golden":
        return _recorded(version, call, device, key)
    rng = np.random.default_rng([seed, KINDS.index(kind)])

    def matrix(rows: int, cols: int) -> Any:
        return torch.from_numpy(draw(rng, rows, cols, kind, (BLOCK, BLOCK))).to(torch.bfloat16).to(device)

    if len(dims) == 2:
        x = matrix(*dims)
        return _same_codes(call({"x": x}), torch_contract.REFERENCES[operator]({"x": x}), key, f"{operator} on {kind}")
    m, n, k = dims
    by_rows = operator.endswith("_rows")
    a_q, a_s = torch_contract.quantise_rows(matrix(m, k))
    quantise = torch_contract.quantise_rows if by_rows else torch_contract.quantise_blocks
    b_q, b_s = quantise(matrix(n, k))
    (out,) = call({"a_q": a_q, "a_s": a_s, "b_q": b_q, "b_s": b_s})
    dequantise = torch_contract.dequantise_rows if by_rows else torch_contract.dequantise_blocks
    wanted = torch_contract.dequantise_rows(a_q, a_s).double() @ dequantise(b_q, b_s).double().t()
    value = snr_db(out.float().cpu().numpy(), wanted.cpu().numpy())
    return _require(value, LEAST_DB, f"{operator} on {kind}, dB")


def _recorded(version: Path, call: Any, device: Any, key: str) -> float:
    """A kernel against recorded answers."""
    import torch

    from .torch_load import to_torch

    _, dispatch = store.read_version(version)
    operands, wanted = _golden(version)
    inputs = {
        entry["name"]: to_torch(array, entry["dtype"], device)
        for entry, array in zip(dispatch["operands"]["inputs"], operands, strict=True)
    }
    worst = float("inf")
    for number, (out, reference) in enumerate(zip(call(inputs), wanted, strict=True)):
        truncated = key == store.INTERPRET and out.dtype is torch.float8_e4m3fn
        value = snr_db(out.float().cpu().numpy(), reference)
        least = INTERPRETED_DB if truncated else LEAST_DB
        worst = min(worst, _require(value, least, f"{dispatch['operator']}, output {number}, dB"))
    return worst


def _same_codes(found: tuple[Any, ...], wanted: tuple[Any, ...], key: str, what: str) -> float:
    import torch

    share = 1.0
    for out, reference in zip(found, wanted, strict=True):
        scales = reference.dtype is torch.float32
        bits = torch.int32 if scales else torch.uint8
        equal = float((out.view(bits) == reference.view(bits)).double().mean())
        least = INTERPRETED_CODES if key == store.INTERPRET and not scales else 1.0
        share = min(share, _require(equal, least, f"{what}, share of equal {'scales' if scales else 'codes'}"))
    return share


# -- the command -------------------------------------------------------------------------------------


def main(operators: Sequence[str]) -> int:
    """A line for each check of the current versions: passed, failed, or skipped where nothing here can run it."""
    failed = False
    for operator in operators or store.operators():
        version = store.current_version(operator)
        for case in store.read_version(version)[1].get("checks", ()):
            try:
                outcome = f"passed ({check(version, **case):.4g})"
            except AssertionError as error:
                outcome, failed = f"failed: {error}", True
            except store.UnsoundLibrary:
                raise
            except store.NotServed as error:
                outcome = f"skipped: {error}"
            sys.stdout.write(f"{operator} {case['target']} {case['dims']} {case['kind']}: {outcome}\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
