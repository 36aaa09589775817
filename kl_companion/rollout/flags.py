"""Checks of values that cost one read on the host, however many they are."""

from __future__ import annotations

from collections.abc import Callable

import torch

from kl_companion.checks import may_read, refuse_nan
from kl_companion.host_reads import any_wrong


class Flags:
    """Value checks of one call, decided together.

    `add` notes a check and reads nothing. `settle` reads one number for all of them; only if something is
    wrong are the checks repeated in their order, and the first that fails raises the error that names
    the place.
    """

    def __init__(self) -> None:
        self._checks: list[tuple[torch.Tensor, Callable[[], object]]] = []

    def add(self, wrong: torch.Tensor, complain: Callable[[], object]) -> None:
        """Note that ``complain`` has to be called where any entry of ``wrong``, bool, is true."""
        self._checks.append((wrong.any(), complain))

    def no_nan(self, name: str, result: torch.Tensor, **parts: torch.Tensor) -> torch.Tensor:
        """Return ``result``, which must not contain NaN; arguments as `kl_companion.checks.refuse_nan`."""
        values = {part: x.detach() for part, x in parts.items()}
        self.add(result.detach().isnan(), lambda: refuse_nan(name, result.detach(), **values))
        return result

    def settle(self) -> None:
        """Raise the error of the first check that fails; where values cannot be read, none does.

        A caller that collects flags (`kl_companion.host_reads.collecting`) reads them all at once.
        """
        checks, self._checks = self._checks, []
        if not checks:
            return
        wrong = torch.stack([flag for flag, _ in checks])
        if may_read(wrong) and any_wrong(wrong):
            for flag, complain in checks:
                if flag.item():
                    complain()
