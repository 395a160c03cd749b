"""Kernels and their launchers: the only code that knows programs, grids and cores."""
