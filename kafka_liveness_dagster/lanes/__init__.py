"""What a run of each lane does, from its first poll to its last commit."""
