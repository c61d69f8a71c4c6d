"""The intermediate representations: expressions, values, programs, kernels and sources. No torch, no sympy, no triton."""
