"""The request for an audit: a loss, and what its caller says about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from kl_companion.checks import check_scalar, described
from kl_companion.tabular import Problem

NOTHING: Mapping[str, Any] = MappingProxyType({})


class AuditRequest(NamedTuple):
    """A loss to audit; the fields are the arguments of `kl_companion.audit`."""

    loss: Any = None
    placement: str = "loss"
    level: str | None = None
    problems: Sequence[Problem] | None = None
    group_size: int | None = None
    want: str | None = None
    max_terms: int = 3
    off_policy: bool | None = None
    scale: float | None = None
    roles: Mapping[str, str] = NOTHING
    options: Mapping[str, Any] = NOTHING
    progress: Callable[[str], None] | None = None

    def check(self) -> None:
        """Raise ValueError for a value that cannot be used, or for two that exclude each other."""
        if self.scale is not None:
            check_scalar("scale", self.scale, positive=True)
        if self.max_terms < 1:
            raise ValueError(f"max_terms is {self.max_terms}, expected at least 1")
        if self.problems is None:
            return
        check_problems(self.problems)
        if self.scale is not None or self.off_policy is not None:
            raise ValueError(
                f"problems got scale={self.scale}, off_policy={self.off_policy}, expected None: they choose "
                "the default worlds, and problems say themselves who samples"
            )


def check_problems(problems: Sequence[Problem]) -> None:
    """Raise ValueError unless there is at least one world, in a list: a `Problem` itself is a tuple."""
    if not len(problems):
        raise ValueError("problems is an empty list, expected at least one Problem, or None")
    single = isinstance(problems, Problem)
    if single or not all(isinstance(p, Problem) for p in problems):
        got = "one Problem" if single else f"[{', '.join(described(p) for p in problems)}]"
        raise ValueError(f"problems is {got}, expected a list of them: problems=[prefix_tree(3, 2)]")
