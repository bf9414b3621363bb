"""From a model and example inputs to a recorded network: its operations, units, recurrences and squared pass."""
