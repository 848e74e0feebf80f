"""From a Plan to Source: readable Triton and C++ kernels and the Python wrapper that calls them."""
