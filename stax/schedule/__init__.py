"""Scheduling: Program to fused kernels and an order of steps, by pure predicates that give reasons."""
