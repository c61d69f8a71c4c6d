"""Code generation: Kernel to source text, one folder a target."""
