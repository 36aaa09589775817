"""What is followed through the releases of a project, as ``[history]`` of its file says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, NamedTuple

from kl_companion.checks import unknown_name
from kl_companion.frameworks.adapter import functions_of
from kl_companion.frameworks.installed import Distribution, known, read
from kl_companion.frameworks.shipped import Shipped

PAST = ("trl", "verl", "openrlhf", "liger", "unsloth", "tinker")
# followed by their adapters, from the release that those were written for on
ADAPTED = ("areal", "tunix", "skyrl", "torchtune", "torchrl", "ms_swift", "rlinf", "axolotl")
PROJECTS = (*PAST, *ADAPTED)


class FollowedLoss(NamedTuple):
    """A loss of a project.

    Attributes:
        name: ``project.something``.
        title: In words.
        ship: What a release has: a function of the unpacked release and of options that replace its defaults.
            It raises `Unavailable` where the release has no such loss.
        promise: What its name says that it minimizes, as ``want`` of `kl_companion.audit`. Whether it does is
            computed.
        instead: Options that may keep the promise where the defaults do not; audited before they are named.
    """

    name: str
    title: str
    ship: Callable[[Distribution, Mapping[str, Any]], Shipped]
    promise: str
    instead: tuple[Mapping[str, Any], ...] = ()


class Project(NamedTuple):
    """A project whose releases are audited.

    Attributes:
        name: Of the framework's adapter.
        distribution: As the package index has it.
        first: The oldest release that has anything to audit.
        subjects: What is followed.
    """

    name: str
    distribution: str
    first: str
    subjects: tuple[FollowedLoss, ...]


def project(name: str) -> Project:
    """The project of this name; ValueError for an unknown one."""
    if name not in PROJECTS:
        raise unknown_name("project with past releases", name, PROJECTS)
    if name in ADAPTED:
        adapted: Project = import_module("kl_companion.frameworks.history.adapted").project_of(name)
        return adapted
    data, functions = read(name)["history"], functions_of(name)
    followed = (
        FollowedLoss(
            f"{name}.{loss['name']}",
            loss["title"],
            functions[loss["ship"]],
            loss["promise"],
            tuple(loss.get("instead", ())),
        )
        for loss in data["losses"]
    )
    return Project(name, data.get("distribution", known(name)[0]), data["first"], tuple(followed))


def subject(name: str) -> tuple[Project, FollowedLoss]:
    """The subject ``project.something`` and its project; ValueError for an unknown one."""
    of = project(name.partition(".")[0])
    known = {s.name: s for s in of.subjects}
    if name not in known:
        raise unknown_name(f"loss of {of.name} with a history", name, known)
    return of, known[name]
