"""The compile stages in order: trace, lower, schedule, emit, build, assemble; and what is kept of them in the store."""
