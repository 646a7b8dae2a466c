"""Measurements on the real components: each file answers one question, and its numbers are kept in RESULTS.md."""
