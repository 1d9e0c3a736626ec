"""What comes before an FP8 product, fused with the cast: RMSNorm and SwiGLU, each with 1 x 128 quantisation."""
