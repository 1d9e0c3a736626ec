"""Run in a child process by the tests of the JAX library, which sees the library and JAX only; prints JSON."""

import json
import os
import sys
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np


def snr(got: object, wanted: object) -> float:
    got, wanted = np.asarray(got, np.float64), np.asarray(wanted, np.float64)
    return float(10 * np.log10((wanted**2).sum() / max(((got - wanted) ** 2).sum(), 1e-300)))


def sharded(a: jax.Array, w: jax.Array, w_q: jax.Array, sw: jax.Array, dy: jax.Array) -> dict[str, float]:
    """Rows over the devices here: the kernel interpreted, jitted; a loss whose gradient of the weights is summed."""
    import tilewright_library as library
    from jax.sharding import PartitionSpec as Over

    mesh = jax.make_mesh((jax.device_count(),), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))
    rows, whole = Over("rows", None), Over(None, None)

    def product(interpret: bool) -> object:
        def local(a: jax.Array, w_q: jax.Array, sw: jax.Array) -> jax.Array:
            return library.gemm_fp8_fused(a, w_q, sw, interpret=interpret)

        operands = (rows, whole, Over(None, None, None))
        return jax.jit(jax.shard_map(local, mesh=mesh, in_specs=operands, out_specs=rows, check_vma=False))

    @jax.jit
    def gradients(a: jax.Array, w: jax.Array, dy: jax.Array) -> tuple[jax.Array, ...]:
        def local(a: jax.Array, w: jax.Array, dy: jax.Array) -> tuple[jax.Array, ...]:
            loss = lambda a, w: jnp.sum((library.linear_fp8_fused(a, w, 512) * dy).astype(jnp.float32))  # noqa: E731
            da, dw = jax.grad(loss, (0, 1))(a, w)
            return da, jax.lax.psum(dw.astype(jnp.float32), "rows")

        specs = (rows, whole, rows)
        return jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=(rows, whole), check_vma=False)(a, w, dy)

    alone = library.gemm_fp8_fused(a, w_q, sw)
    da, dw = gradients(a, w, dy)
    return {
        "devices": jax.device_count(),
        "y": snr(product(False)(a, w_q, sw), alone),
        "interpreted": snr(product(True)(a, w_q, sw), alone),
        "da": snr(da, np.asarray(dy, np.float64) @ np.asarray(w, np.float64).T),
        "dw": snr(dw, np.asarray(a, np.float64).T @ np.asarray(dy, np.float64)),
    }


def main() -> None:
    import tilewright_library as library
    from tilewright_library import checks, jax_operators

    keys = jax.random.split(jax.random.key(0), 3)
    a = jax.random.normal(keys[0], (256, 1024), jnp.bfloat16)
    w = jax.random.normal(keys[1], (1024, 256), jnp.bfloat16)
    dy = jax.random.normal(keys[2], (256, 256), jnp.bfloat16)
    w_q, sw = library.quantise_weights(w, 512)
    reference = jax_operators.product(a, w_q, sw)
    product = np.asarray(a, np.float64) @ np.asarray(w, np.float64)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        here = jax.jit(library.gemm_fp8_fused)(a, w_q, sw)
        library.gemm_fp8_fused(a[:128], w_q, sw)
    interpreted = library.gemm_fp8_fused(a, w_q, sw, interpret=True)
    y, pull = jax.vjp(lambda a, w: library.linear_fp8_fused(a, w, 512), a, w)
    da, dw = pull(dy)
    _, pull_fused = jax.vjp(lambda a: library.gemm_fp8_fused(a, w_q, sw), a)
    refused = []
    for operands in ((a.astype(jnp.float32), w_q, sw), (a, w_q, sw[:, :, :128]), (a[:, :512], w_q, sw)):
        try:
            library.gemm_fp8_fused(*operands)
        except (TypeError, ValueError) as error:
            refused.append(str(error))
    more: dict[str, object] = {}
    if "devices" in sys.argv[1:]:
        jitted = jax.jit(jax.grad(lambda a: jnp.sum(library.gemm_fp8_fused(a, w_q, sw, interpret=True) * dy)))(a)
        more["jitted"] = snr(jitted, np.asarray(dy, np.float64) @ np.asarray(w, np.float64).T)
        more["sharded"] = sharded(a, w, w_q, sw, dy)
    generated = checks.check(Path(os.environ["VERSION"]), "tpu7x", {"M": 256, "N": 512, "K": 4096}, "spread")
    found = {
        "generated": generated,
        "interpreted": snr(interpreted, reference),
        "here": snr(here, reference),
        "warnings": [str(c.message) for c in caught if "Fallback" in c.category.__name__],
        "y": snr(y, product),
        "da": snr(da, np.asarray(dy, np.float64) @ np.asarray(w, np.float64).T),
        "dw": snr(dw, np.asarray(a, np.float64).T @ np.asarray(dy, np.float64)),
        "fused_da": snr(pull_fused(dy)[0], np.asarray(dy, np.float64) @ np.asarray(w, np.float64).T),
        **more,
        "refused": refused,
        "modules": [name for name in ("torch", "evolve", "seeds") if name in sys.modules],
    }
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
