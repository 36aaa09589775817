"""Tests, and the oracles and helpers that they share."""
