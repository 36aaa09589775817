"""The command `kl-companion`, one module per verb."""

from kl_companion.cli.command import main
from kl_companion.cli.loading import load_function

__all__ = ["load_function", "main"]
