"""FP8 GEMM with the activation quantised inside the kernel (TPU)."""
