"""Capture: run-time tracing of a callable with fake tensors into a functional ATen graph with guards."""
