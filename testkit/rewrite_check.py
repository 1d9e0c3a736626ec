"""Child process that runs rewritten kernels in an interpreter and compares them with their parents.

Its argument is a language. A line of standard input is a task, a JSON list of ``{"id", "parent", "parent_params",
"source", "params", "inputs"}``; the answer is one JSON line per job, ``{"id", "ok", "reason"}``, and the
line ``end``.
``inputs`` are ``[name, shape, dtype, kind]``; kinds are ``normal``, ``positive`` (scales), ``index:<stop>``,
``values:<a>,<b>,...``, ``leading:<a>`` (small integers behind an a), ``nan-from:<row>`` and a number for a scalar.
A job passes when every output agrees with its parent's to 40 dB.
"""

import importlib.util
import json
import signal
import sys
import tempfile
from pathlib import Path

import ml_dtypes
import numpy as np

MINIMUM_DB = 40.0
CPU_SECONDS_PER_JOB = 40
"""Processor time, so that a busy machine fails nobody; the whole process has a wall clock of its own."""


class TookTooLong(Exception):
    """The alarm of one job went off."""


def _alarm(signum: int, frame: object) -> None:
    raise TookTooLong


def make_input(spec: list, rng: np.random.Generator) -> object:
    _, shape, dtype, kind = spec
    if not isinstance(kind, str):
        return kind
    if kind == "normal":
        return rng.standard_normal(shape).astype(np.float32).astype(_dtype(dtype))
    if kind == "positive":
        return np.exp2(rng.integers(-3, 4, shape)).astype(np.float32).astype(_dtype(dtype))
    if kind.startswith("index:"):
        return rng.integers(0, int(kind[6:]), shape).astype(_dtype(dtype))
    if kind.startswith("values:"):
        return np.array([int(v) for v in kind[7:].split(",")], _dtype(dtype)).reshape(shape)
    if kind.startswith("leading:"):
        made = rng.integers(-2, 3, shape).astype(np.float32)
        made[..., 0] = float(kind[8:])
        return made.astype(_dtype(dtype))
    if kind.startswith("nan-from:"):
        made = rng.standard_normal(shape).astype(np.float32)
        made[int(kind[9:]) :] = np.nan
        return made.astype(_dtype(dtype))
    if kind == "zero":
        return np.zeros(shape, _dtype(dtype))
    raise ValueError(f"unknown kind of input {kind}")


def _dtype(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name, name))


def is_gluon(source: str) -> bool:
    return "triton.experimental.gluon" in source


def load(source: str, folder: str, number: int) -> object:
    path = Path(folder) / f"kernel_{number}.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(f"kernel_{number}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def snr_db(reference: np.ndarray, value: np.ndarray) -> float:
    """10 log10(|ref|^2 / |ref - value|^2) in dB; -inf for shapes that differ and for NaN."""
    if reference.shape != value.shape or not np.isfinite(value).all():
        return float("-inf")
    noise = float(((reference - value) ** 2).sum())
    signal_power = float((reference**2).sum())
    return float("inf") if noise == 0 else 10 * float(np.log10(max(signal_power, 1e-300) / noise))


def run_pallas(module: object, params: dict, inputs: list) -> list[np.ndarray]:
    import jax
    import jax.numpy as jnp

    function = module.build(params)  # type: ignore[attr-defined]
    # Some constructs ask which chip they are for, although the interpreter runs on the host.
    device = jax.sharding.AbstractDevice(device_kind="TPU7x", num_cores=1, platform="tpu")
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((1,), ("x",), abstract_device=device)):
        out = jax.jit(function)(*[jnp.asarray(v) for v in inputs])
    leaves = out if isinstance(out, tuple | list) else (out,)
    return [np.asarray(leaf.astype(jnp.float32)).astype(np.float64) for leaf in leaves]


def interpret_pallas() -> None:
    """Every launch in this process runs in the interpreter."""
    import functools

    from jax.experimental import pallas

    pallas.pallas_call = functools.partial(pallas.pallas_call, interpret=True)


def run_triton(module: object, params: dict, specs: list, inputs: list) -> list[np.ndarray]:
    import torch

    given = {}
    for spec, value in zip(specs, inputs, strict=True):
        if not isinstance(value, np.ndarray):
            given[spec[0]] = value
            continue
        flat = torch.from_numpy(np.ascontiguousarray(value).view(np.uint8))
        dtype = getattr(torch, spec[2])
        given[spec[0]] = flat.view(dtype).reshape(value.shape).clone()
    out = module.launch(given, params)  # type: ignore[attr-defined]
    leaves = out if isinstance(out, tuple | list) else (out,)
    return [leaf.to(torch.float64).numpy() for leaf in leaves]


def check(job: dict, language: str, folder: str, references: dict, number: int) -> str:
    """Why the outputs are not the parent's; "" where they are."""
    specs = job["inputs"]
    rng = np.random.default_rng(7)
    inputs = [make_input(s, rng) for s in specs]

    def outputs(source: str, params: dict, tag: int) -> list[np.ndarray]:
        if language != "pallas" and is_gluon(source):
            from tilewright.workers.runners.gluon_emulator.install import install

            install(seed=number)
        module = load(source, folder, tag)
        if language == "pallas":
            return run_pallas(module, params, inputs)
        return run_triton(module, params, specs, inputs)

    key = (job["parent"], json.dumps([job["parent_params"], specs], sort_keys=True))
    if key not in references:
        references[key] = outputs(job["parent"], job["parent_params"], 2 * number)
    expected = references[key]
    got = outputs(job["source"], job["params"], 2 * number + 1)
    if len(got) != len(expected):
        return f"{len(got)} outputs instead of {len(expected)}"
    worst = min(snr_db(e, g) for e, g in zip(expected, got, strict=True))
    return "" if worst >= MINIMUM_DB else f"{worst:.1f} dB"


def main(language: str) -> None:
    if language == "pallas":
        interpret_pallas()
    else:
        from tilewright.workers.runners.triton.interpreter_rounding import repair

        repair()
    signal.signal(signal.SIGPROF, _alarm)
    for line in sys.stdin:
        with tempfile.TemporaryDirectory() as folder:
            run_task(json.loads(line), language, folder)
        sys.stdout.write("end\n")
        sys.stdout.flush()


def run_task(jobs: list[dict], language: str, folder: str) -> None:
    references: dict = {}
    for number, job in enumerate(jobs):
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS_PER_JOB)
        try:
            reason = check(job, language, folder, references, number)
        except TookTooLong:
            reason = "time-out"
        except Exception as error:  # noqa: BLE001 - a candidate may fail in any way
            reason = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:160]}"
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.write(json.dumps({"id": job["id"], "ok": not reason, "reason": reason}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
