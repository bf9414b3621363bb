"""The operations in torch alone: the same arguments and results as the kernel's, within rounding, for every tensor."""
