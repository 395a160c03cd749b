"""Operators on top of the blocks: matrix products whose error does not grow with K."""

from .products import bmm, linear, matmul

__all__ = ["bmm", "linear", "matmul"]
