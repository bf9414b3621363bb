"""Numerics without a model: log-scaled numbers, recurrences, nonnegative matrices."""
