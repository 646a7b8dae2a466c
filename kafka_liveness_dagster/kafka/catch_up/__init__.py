"""The catch-up lane: crash lag ranges and the second commit log (KIP-333)."""
