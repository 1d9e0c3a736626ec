"""Run in a child process by the tests of ``load``: the library, NumPy and JAX or torch; JSON on standard output."""

import functools
import json
import sys
import warnings

import numpy as np


def warned(call: object) -> tuple[object, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = call()  # type: ignore[operator]
    return result, [str(w.message) for w in caught if "Fallback" in w.category.__name__]


def operands(operator: object) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = operator.operands.named((64, 32, 128))  # type: ignore[attr-defined]
    return [rng.standard_normal(o.sizes(shapes)) for o in operator.operands.inputs]  # type: ignore[attr-defined]


def main(framework: str) -> None:
    import tilewright_library as library

    operator = library.load("small_gemm/good")
    a, b = operands(operator)
    if framework == "jax":
        import jax
        import jax.numpy as jnp

        made, wide, compiled = (lambda x: jnp.asarray(x, jnp.bfloat16)), jnp.float32, jax.jit
    else:
        import torch

        made, wide = (lambda x: torch.from_numpy(x).to(torch.bfloat16)), torch.Tensor.float
        compiled = functools.partial(torch.compile, fullgraph=True, backend="aot_eager")
    inputs = [made(a), made(b)]
    (plain, messages), (_, later) = warned(lambda: operator(*inputs)), warned(lambda: operator(*inputs))
    jitted = compiled(lambda a, b: operator(a, b))(*inputs)
    named = library.small_gemm_good(a=inputs[0], b=inputs[1])
    wrong = ((inputs[0], made(b.T.copy())), (wide(inputs[0]), inputs[1]), (inputs[0],), (1.0, 2.0))
    refused = []
    for bad in wrong:
        try:
            operator(*bad)
        except (TypeError, ValueError) as error:
            refused.append(str(error))
    rounded = [np.asarray(x.float() if framework == "torch" else x, np.float64) for x in inputs]
    wanted = rounded[0] @ rounded[1]

    def off(result: object) -> float:
        found = np.asarray(result.float() if framework == "torch" else result, np.float64)  # type: ignore[attr-defined]
        return float(np.abs(found - wanted).max() / np.abs(wanted).max())

    try:
        library.load("no/such")
    except library.NotServed as error:
        unknown = str(error)
    found = {
        "off": [off(plain), off(jitted), off(named)],
        "warnings": messages,
        "later": later,
        "refused": refused,
        "served": [
            str(operator.served(*inputs)),
            str(library.served("small_gemm/good", "tpu:TPU7x", (256, 256, 512))),
            str(library.served("small_gemm/good", "interpret", (512, 256, 512))),
        ],
        "unknown": unknown,
        "tilewright": [name for name in sys.modules if name.split(".")[0] in ("tilewright", "seeds")],
    }
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
