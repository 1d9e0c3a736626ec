"""One training step of a linear layer in JAX whose product runs in FP8 through the library's Pallas kernels.

    PYTHONPATH=library python examples/linear_fp8_jax.py

On a TPU the promoted kernel multiplies; elsewhere the recipe's reference product does, with one warning.
"""

import jax
import jax.numpy as jnp
from tilewright_library import linear_fp8_fused


def loss(w, a, wanted):
    return jnp.mean((linear_fp8_fused(a, w, 512).astype(jnp.float32) - wanted) ** 2)


def main():
    keys = jax.random.split(jax.random.key(0), 3)
    a = jax.random.normal(keys[0], (256, 512), jnp.bfloat16)
    teacher = jax.random.normal(keys[1], (512, 256), jnp.bfloat16) / 16
    w = jax.random.normal(keys[2], (512, 256), jnp.bfloat16) / 16
    wanted = (a @ teacher).astype(jnp.float32)
    step = jax.jit(jax.value_and_grad(loss))
    for number in range(40):
        value, gradient = step(w, a, wanted)
        w = (w - 40.0 * gradient).astype(jnp.bfloat16)
        if number % 10 == 0:
            print(f"step {number}: loss {value:.4f}")
    print(f"step {number}: loss {value:.4f}")


if __name__ == "__main__":
    main()
