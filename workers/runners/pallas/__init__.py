"""Children that trace, check, compile and time Pallas kernels."""
