"""What makes a site of the pages: `make docs`.

It holds no page; those are in docs/, and read there as well.
"""
