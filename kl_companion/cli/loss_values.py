"""Values of a loss that no audit can read: NaN, infinity, and another one at every call."""

from __future__ import annotations

import math
import random
from typing import Any


def check_values(loss: Any, **reading: Any) -> None:
    """Raise ValueError where the values of a loss are the reason that nothing is known of it.

    Args:
        loss: As `kl_companion.audit` takes it; a name, or one that does not run, is let pass.
        **reading: ``roles`` and ``options`` of the audit.
    """
    if isinstance(loss, str):
        return
    import torch

    from kl_companion.auditing.reading.probing import probe
    from kl_companion.auditing.reading.subject import as_loss

    values = []
    try:
        scalar = as_loss(loss, **reading)
        with torch.random.fork_rng(devices=[]):
            for seed in (0, 0, 1):
                torch.manual_seed(seed)
                random.seed(seed)
                values.append(scalar(probe()).item())
    except (ValueError, RuntimeError):
        return
    name, (first, again, other) = getattr(loss, "__name__", type(loss).__name__), values
    if not math.isfinite(first):
        raise ValueError(
            f"{name} is {first} on a small batch, expected a finite number: does it divide by 0, or take the "
            "log of 0?"
        )
    for value, why in (
        (again, "keeps something from one call to the next"),
        (other, "draws random numbers (a random mask, dropout): pass what it draws as an argument"),
    ):
        if not math.isclose(first, value, rel_tol=1e-9):
            raise ValueError(
                f"two calls of {name} with the same tensors differ ({first:.4g}, then {value:.4g}), expected "
                f"a function of its arguments: it {why}"
            )
