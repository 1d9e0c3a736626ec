"""From the start of a process to the end of its first call, in seconds: ``PYTHONPATH=library python cold.py M N K``."""

import json
import sys
import time

began = time.perf_counter()
import torch  # noqa: E402

imported = time.perf_counter()
torch.cuda.init()
m, n, k = map(int, sys.argv[1:4])
x = torch.randn(m, k, dtype=torch.bfloat16, device="cuda").requires_grad_()
w = torch.randn(n, k, dtype=torch.bfloat16, device="cuda").requires_grad_()
torch.cuda.synchronize()
ready = time.perf_counter()
from tilewright_library import gemm_fp8_blockwise  # noqa: E402

known = time.perf_counter()
y = gemm_fp8_blockwise(x, w)
torch.cuda.synchronize()
called = time.perf_counter()
y.backward(torch.ones_like(y))
torch.cuda.synchronize()
ended = time.perf_counter()
sys.stdout.write(
    json.dumps(
        {
            "import torch": imported - began,
            "torch ready": ready - imported,
            "import library": known - ready,
            "first call": called - known,
            "first backward": ended - called,
        }
    )
    + "\n"
)
