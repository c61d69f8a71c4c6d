"""Triton text from kernels: emit.emit is the door."""
