"""The live lane: a member of the consumer group."""
