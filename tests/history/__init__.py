"""A history of what a pipeline produced, wrote and reported, and a checker of it.

Nothing here imports the product: the checker stays a witness of its own while the product changes.
"""
