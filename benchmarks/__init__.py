"""Measurements on the real components.

Each file answers one question, and its numbers are kept in RESULTS.md.
"""
