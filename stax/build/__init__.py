"""Build: source text to machine code, by a local process pool or a handed-in builder."""
