"""Artifacts: what the compiling side hands to the running side. Plain data, no torch, no compiler."""
