"""Children that record, compile, interpret and time Triton and Gluon kernels."""
