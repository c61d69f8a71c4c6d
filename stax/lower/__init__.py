"""Lowering: ATen graph to loop-level Program, one family of operators a file."""
