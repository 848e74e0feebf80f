"""Plan kernels -> Triton modules."""
