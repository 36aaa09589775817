"""kl-companion: list, derive, audit, claims and table from the command line, one module per verb."""

from kl_companion.cli.audit import load_function
from kl_companion.cli.command import main

__all__ = ["load_function", "main"]
