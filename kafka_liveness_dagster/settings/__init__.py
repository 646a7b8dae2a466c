"""Settings of assets, consumers and resources: their types, their checks and their errors."""
