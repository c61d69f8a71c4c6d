"""C++ text from kernels."""
