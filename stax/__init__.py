"""Stax: compile a PyTorch program once, on a farm, and let every machine fetch the result."""

__version__ = "0.1.0"
