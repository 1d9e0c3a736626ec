"""Kernels that earned promotion, served to torch and JAX programs. Imports torch or JAX, and nothing else.

    from tilewright_library import gemm_fp8_blockwise    # torch: x [..., K] and w [N, K] in bf16, trainable
    from tilewright_library import Linear, convert       # torch: modules around it
    from tilewright_library import gemm_fp8_fused        # JAX: a [M, K] bf16, w [K, N] e4m3, sw [K/g, 1, N] f32
    from tilewright_library import linear_fp8_fused      # JAX: a [M, K] and w [K, N] in bf16, trainable
    from tilewright_library import load                  # any promoted operator, for torch and JAX, by its name
    from tilewright_library import gridquant_quant_256   # the same, where nothing else has that name

A shape, device or toolchain that no promoted kernel serves gets the recipe's reference product instead, and a
``FallbackWarning`` once that says why. ``served`` tells beforehand.

The modules import one another relatively: tilewright uses this package as ``tilewright.library``, and a promotion
copies them into a library of any name.
"""

import importlib
import re

_EXPORTS = {
    "FallbackWarning": ".loaded",
    "Service": ".loaded",
    "served": ".loaded",
    "NotServed": ".store",
    "UnsoundLibrary": ".store",
    "operators": ".store",
    "gemm_fp8_blockwise": ".torch_operators",
    "gemm_fp8_fused": ".jax_operators",
    "linear_fp8_fused": ".jax_operators",
    "quantise_weights": ".jax_operators",
    "Linear": ".torch_modules",
    "convert": ".torch_modules",
    "gain_table": ".torch_modules",
    "kept_weights": ".torch_modules",
    "load": ".loaded",
}
"""Name to the module that has it. A confined child may read ``plans`` and ``torch_record`` alone."""


def _by_name() -> dict[str, str]:
    """Promoted operators by a Python name, ``family_recipe``."""
    operators = importlib.import_module(".store", __name__).operators()
    return {re.sub(r"\W", "_", operator): operator for operator in operators}


def __getattr__(name: str) -> object:
    """Imports torch or JAX with the first function of theirs that is asked for."""
    if name in _EXPORTS:
        return getattr(importlib.import_module(_EXPORTS[name], __name__), name)
    if not name.startswith("_") and name in (known := _by_name()):
        return importlib.import_module(".loaded", __name__).load(known[name])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*_EXPORTS, *_by_name()})
