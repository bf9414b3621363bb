"""The metric of an update: measured, made into whitenings, applied to gradients."""
