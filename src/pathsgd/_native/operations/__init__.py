"""One file an operation: it asks whether the kernel can do it, and calls that (../src) or torch (../fallback).

The three have the same name. A structure here mirrors the one of that name in the operation's C++ header.
"""
