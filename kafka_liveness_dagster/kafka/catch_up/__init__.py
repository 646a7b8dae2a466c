"""The catch-up lane: crash lag ranges and the catch-up commit log (KIP-333)."""
