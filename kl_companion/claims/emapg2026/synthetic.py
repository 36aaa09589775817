"""Claims, to be written."""
