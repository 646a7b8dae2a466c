"""The run of each lane, from its first poll to its last commit."""
