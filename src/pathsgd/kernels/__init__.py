"""Operations by a C++ kernel where it accepts the tensors, by torch otherwise, same results.

An operation is two files: NAME.py has the function NAME, which calls the kernel, and torch's way
beside it; src/NAME.cpp is the kernel. native.py is the border between them. Import an operation
from its file: the package has its modules only.
"""
