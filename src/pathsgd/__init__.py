"""pathsgd."""
