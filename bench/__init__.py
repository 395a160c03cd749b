"""Measurements: what the numbers in the documentation were printed by."""
