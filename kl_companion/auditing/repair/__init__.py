"""Repair a loss: a change of its own lines that passes the audit, or a term in its place."""
