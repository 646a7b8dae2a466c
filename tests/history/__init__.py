"""Histories of a pipeline, and a checker that finds their contradictions.

Nothing here imports the product: the checker stays independent while the product changes.
"""
