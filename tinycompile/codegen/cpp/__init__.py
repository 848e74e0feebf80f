"""C++ kernels for the CPU: SIMD and OpenMP."""
