"""Worlds on which a loss is looked at, and the objectives that have a name there."""
