"""From a model and example inputs to a recording."""
