"""Triton text from kernels."""
