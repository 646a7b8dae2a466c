"""The timeline of KIP-62.

A consumer that stalls, watched from three sides, as a command, a verdict and a picture.
"""
