"""Fit the expected gradient of a loss by the gradients of named objectives."""
