"""The record of one setting: one way to configure the regularization of a framework.

A `Setting` holds what a user writes into the framework's own configuration, and a loss: a function of a
`Rollout` that calls the installed function, or computes the same formula in our own code where the framework
cannot be installed. Which objective the loss has the gradient of is never typed in: `audit_setting` computes
it.

Every loss is the regularizer alone, with coefficient 1, and not divided by any standard deviation. With which
algorithms it is used, and what those divide, is recorded in `Setting.algorithms`.
Where a framework divides by the number of tokens of a whole batch, that number is the same for every sequence
in it; it is set to the number of sequences, so that a coefficient is that of a sum over tokens. A loss that
counts the tokens itself has a coefficient "/ mean answer length": in a large batch that is the same number.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch

from kl_companion.auditing.reading.precision import exactly
from kl_companion.frameworks.algorithms import Algorithm
from kl_companion.frameworks.installed import (
    SourceLocation,
    Unavailable,
    digest_of,
    find,
    installed_version,
    line_of,
)
from kl_companion.rollout import Rollout

# in the names of settings whose reference is a teacher
_TEACHER = re.compile(r"distill|opd|gkd|jsd|sdpo|sdft|kd_|logit_strategy|^prime_rl|^megatron\.top")


class Remedy(NamedTuple):
    """The settings of a framework that give the two gradients of the reverse KL; None where it has none."""

    sequence: str | None
    token: str | None
    words: str = ""


class Framework(NamedTuple):
    """A framework; `kl_companion.frameworks.settings` has its settings.

    Attributes:
        name: That of its file here.
        title: As its authors write it.
        distribution: The installable package whose functions are called; "" if they are formulas of ours.
        versions: Those that are known to work; of a formula, the one that was read.
        remedy: Which of its settings to take instead.
        without: Why it has no default of RL with a KL; "" if it has one.
    """

    name: str
    title: str
    distribution: str
    versions: tuple[str, ...]
    remedy: Remedy
    without: str = ""

    @property
    def version(self) -> str:
        """The installed version, if it is a known one; of a formula the version that was read.

        Raises:
            Unavailable: not installed, or an unknown version.
        """
        if not self.distribution:
            return self.versions[0]
        return find(self.distribution, self.versions).version

    def located(self, place: SourceLocation) -> str:
        """``file:line, function`` if the framework is installed; file and function for a formula."""
        if not self.distribution:
            return f"{place.file}, {place.function}"
        name, versions = place.distribution or self.distribution, place.versions or self.versions
        try:
            line = line_of(find(name, versions), place)
        except Unavailable:
            if place.distribution:  # this framework is here, that one is not
                return f"{place.file}, {place.function}"
            raise
        return f"{place.file}:{line}, {place.function}"

    def digest(self, place: SourceLocation) -> str:
        """Of an installed file."""
        return digest_of(find(self.distribution, self.versions), place)

    @property
    def status(self) -> str:
        """``installed 1.2``, ``formula`` or what is missing, for a list."""
        if not self.distribution:
            return f"formula, read in {self.versions[0]}"
        try:
            return f"installed, {self.version}"
        except Unavailable:
            found = installed_version(self.distribution)
            return "not installed" if found is None else f"installed in the unknown version {found}"


class Setting(NamedTuple):
    """One way to regularize.

    Attributes:
        name: ``framework.something``.
        option: What a user writes, in the framework's own configuration.
        loss: A function of a `Rollout` that returns the scalar to be minimized; the installed function is
            loaded when it is first called.
        place: The file and the function that compute it.
        placement: ``"loss"`` or ``"reward"``.
        level: ``"token"``: a token is charged with its own term; ``"sequence"``: with all that follow too.
        aggregation: How tokens become one number.
        framework: The framework that it belongs to.
        default: What it is the default of; "" if it is not a default.
        note: Remarks for the reader.
        sampled: Whether only the log-prob of the sampled token is read, not the whole distribution.
        algorithms: The RL algorithms of the framework that it is used with, the default first; () where there
            are no rewards, as in distillation.
        beta: The coefficient as shipped in the framework's own default of RL, 0 where it is off until an
            option turns it on; None for a setting that is no default of RL.
        read: The version in which a formula was read that the installed framework does not hold; "" for its
            own functions, and in a framework of formulas.
    """

    name: str
    option: str
    loss: Callable[[Rollout], torch.Tensor]
    place: SourceLocation
    placement: Literal["loss", "reward"]
    level: Literal["token", "sequence"]
    aggregation: str
    framework: Framework
    default: str = ""
    note: str = ""
    sampled: bool = True
    algorithms: tuple[Algorithm, ...] = ()
    beta: float | None = None
    read: str = ""

    @property
    def purpose(self) -> str:
        """``"distillation"`` where a teacher stands in the place of the reference, else ``"RL"``."""
        return "distillation" if _TEACHER.search(self.name) else "RL"

    @property
    def installed(self) -> bool:
        """Whether the framework's own function is called, and not a formula computed."""
        return bool(self.framework.distribution) and not self.read

    @property
    def version(self) -> str:
        """That of the framework; of a formula the one that was read."""
        return self.read or self.framework.version

    @property
    def where(self) -> str:
        """``file:line, function`` if it is installed; file and function as described for a formula."""
        return self.framework.located(self.place) if self.installed else ", ".join(self.place[:2])

    @property
    def digest(self) -> str:
        """Of the installed file that was audited; "none" for a formula."""
        return self.framework.digest(self.place) if self.installed else "none"

    @property
    def exact(self) -> Callable[[Rollout], torch.Tensor]:
        """The loss without casts to float32; formulas have none."""
        return exactly(self.loss) if self.installed else self.loss

    def divides(self, algorithm: Algorithm) -> str:
        """What an algorithm divides by a standard deviation: rewards and penalty, rewards alone, or ""."""
        if not algorithm.over:
            return ""
        return "rewards" if self.placement == "loss" or algorithm.after else "rewards and penalty"

    @property
    def penalty_divided(self) -> Algorithm | None:
        """The default algorithm if it divides the penalty with the rewards; None if it does not."""
        found = (a for a in self.algorithms if not a.when and self.divides(a) == "rewards and penalty")
        return next(found, None)
