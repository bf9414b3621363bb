"""A model as a recorded network: its operations, units, recurrences and squared pass."""
