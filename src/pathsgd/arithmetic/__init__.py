"""Numbers and sequences without a model: log-scaled numbers, linear recurrences, powers of nonnegative matrices."""
