"""Every setting: of which kind, with which words, and how what was declared is held against it."""
