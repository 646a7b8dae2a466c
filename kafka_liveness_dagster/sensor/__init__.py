"""The steps of a group sensor's tick: observe, report, check, add partitions, request runs."""
