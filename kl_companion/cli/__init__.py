"""kl-companion: list, derive, audit, claims and table from the command line, one module per verb."""

from kl_companion.cli.command import main
from kl_companion.cli.loading import load_function

__all__ = ["load_function", "main"]
