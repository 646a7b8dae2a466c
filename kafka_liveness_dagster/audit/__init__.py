"""The audit of a group: a certificate that each offset is in the table exactly once."""
