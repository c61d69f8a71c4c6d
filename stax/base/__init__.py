"""The ground floor: errors, digests, targets, options, events. Imports nothing of Stax and no torch."""
