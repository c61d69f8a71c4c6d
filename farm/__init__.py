"""The farm: the same builds on a Ray cluster, driven by a pure state machine."""
