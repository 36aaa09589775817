"""Read a loss as it stands in a trainer: its source, its parameters and what they mean."""
