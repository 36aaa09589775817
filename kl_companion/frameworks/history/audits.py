"""What the losses of a release minimize, and in which release that changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from typing import Any, NamedTuple

import torch

from kl_companion.auditing import Audit, audit
from kl_companion.auditing.reading.precision import exactly
from kl_companion.frameworks.history.subjects import FollowedLoss, Project
from kl_companion.frameworks.history.wheels import key, wheel_of
from kl_companion.frameworks.installed import Distribution, Unavailable, digest_of, line_of
from kl_companion.frameworks.shipped import Shipped
from kl_companion.frameworks.verdicts import in_words
from kl_companion.rollout import Rollout

FEWEST = 9  # minor releases, below which every release is looked at
NOT_THERE = "not there"


class ReleaseFinding(NamedTuple):
    """What was found of a loss in a release; all are texts, as in the file of findings.

    Attributes:
        subject: ``trl.grpo``.
        version: Of the release.
        date: When its wheel was built.
        option: What a user of this release writes for it.
        beta: The coefficient that it ships; "" where there is none.
        on_policy: What it minimizes on fresh samples, as objectives and coefficients; `NOT_THERE` where the
            release has no such loss.
        off_policy: The same on stale samples.
        where: ``file:line, function``; why there is none where it is not there.
        digest: The first digits of the SHA-256 of that file.
        wheel: The SHA-256 of the wheel.
    """

    subject: str
    version: str
    date: str
    option: str
    beta: str
    on_policy: str
    off_policy: str
    where: str
    digest: str
    wheel: str

    @property
    def verdict(self) -> tuple[str, str, str]:
        """What is compared between releases: the shipped coefficient, and what is minimized."""
        return self.beta, self.on_policy, self.off_policy


def audit_shipped(
    name: str,
    shipped: Shipped,
    *,
    off_policy: bool | None = None,
    scale: float | None = None,
    want: str | None = None,
    progress: Callable[[str], None] | None = None,
) -> Audit:
    """Audit a loss of a release; arguments and errors as in `kl_companion.audit`."""
    exact = exactly(shipped.loss)

    def loss(rollout: Rollout) -> torch.Tensor:
        return exact(rollout)

    found = audit(
        loss,
        off_policy=off_policy,
        scale=scale,
        want=want,
        max_terms=3 if shipped.sampled else 2,
        progress=progress,
    )
    return replace(found, name=name)


def entry(
    subject: FollowedLoss, release: Distribution, options: Mapping[str, Any] | None = None
) -> ReleaseFinding:
    """Audit a loss of a release with its defaults, or with options in their place."""
    wheel = wheel_of(release)
    common = {"subject": subject.name, "version": release.version, "date": wheel.date, "wheel": wheel.sha256}
    try:
        shipped = subject.ship(release, options or {})
    except Unavailable as error:
        nothing = dict.fromkeys(("option", "beta", "digest"), "")
        return ReleaseFinding(
            on_policy=NOT_THERE, off_policy=NOT_THERE, where=str(error), **nothing, **common
        )
    found = audit_shipped(subject.name, shipped)
    place = shipped.place
    return ReleaseFinding(
        option=shipped.option,
        beta="" if shipped.beta is None else f"{shipped.beta:g}",
        on_policy=_words(found, off_policy=False),
        off_policy=_words(found, off_policy=True),
        where=f"{place.file}:{line_of(release, place)}, {place.function}",
        digest=digest_of(release, place),
        **common,
    )


def _words(found: Audit, *, off_policy: bool) -> str:
    """The objectives where lengths vary, at small log-ratios and, where they differ, at large ones."""
    texts = []
    for finding in found.findings:
        if finding.condition and finding.condition.eos and finding.condition.off_policy == off_policy:
            objective, coefficient = in_words(finding)
            texts.append(objective if coefficient in ("1", "none") else f"{objective} ({coefficient})")
    return "; at large log-ratios ".join(dict.fromkeys(texts))


def anchors(versions: Sequence[str], first: str) -> tuple[str, ...]:
    """Releases to look at first: the oldest, and the last of every minor one, or all where there are few.

    Args:
        versions: The published ones, the oldest first.
        first: The oldest that has anything to audit.
    """
    known = [v for v in versions if key(v) >= key(first)]
    last = [list(group)[-1] for _, group in groupby(known, key=lambda v: key(v)[0][:2])]
    return tuple(dict.fromkeys((*known[:1], *last)) if len(last) >= FEWEST else known)


def changes(
    versions: Sequence[str], looked_at: Sequence[str], verdict: Callable[[str], object]
) -> Iterator[tuple[str, str]]:
    """Pairs of neighboring releases between which a verdict changed.

    Between two releases that were looked at and differ, the change is found by bisection. Where they agree,
    what lies between is taken to agree too: a change that was taken back in the meantime is not seen.

    Args:
        versions: All of them, the oldest first.
        looked_at: Some of them, in this order.
        verdict: What is compared; called for those of ``looked_at``, and a few between two that differ.

    Yields:
        The last release with the old verdict, and the first with the new one.
    """
    place = {version: i for i, version in enumerate(versions)}
    for old, new in pairwise(looked_at):
        low, high = place[old], place[new]
        before, after = verdict(old), verdict(new)
        while before != after and high - low > 1:
            middle = (low + high) // 2
            between = verdict(versions[middle])
            if between == before:
                low = middle
            else:  # of several changes between the two the first is found
                high, after = middle, between
        if before != after:
            yield versions[low], versions[high]
            if versions[high] != new:
                yield from changes(versions, (versions[high], new), verdict)


def follow(
    project: Project,
    versions: Sequence[str],
    fetch: Callable[[str], Distribution],
    known: Mapping[tuple[str, str], ReleaseFinding],
    progress: Callable[[str], None] | None = None,
) -> list[ReleaseFinding]:
    """All findings of a project: of its anchors, and of the releases between which a verdict changed.

    Of a loss that is known, only what came after the oldest release that is known is looked at.

    Args:
        project: Whose losses.
        versions: Published releases, the oldest first.
        fetch: From a version to the unpacked release.
        known: Findings that need not be made again, by loss and version.
        progress: Called with a line of text per loss and release.
    """
    found = dict(known)

    def one(subject: FollowedLoss, version: str) -> ReleaseFinding:
        if (subject.name, version) not in found:
            if progress is not None:
                progress(f"{subject.name} in {version}")
            found[subject.name, version] = entry(subject, fetch(version))
        return found[subject.name, version]

    for subject in project.subjects:
        before = [version for name, version in known if name == subject.name]
        look = anchors(versions, min(before, key=key, default=project.first))
        for version in look:  # a single release has no neighbor to be compared with
            one(subject, version)
        for _ in changes(versions, look, lambda v, s=subject: one(s, v).verdict):  # type: ignore[misc]
            pass
    order = {s.name: i for i, s in enumerate(project.subjects)}
    return sorted(found.values(), key=lambda e: (order.get(e.subject, 99), key(e.version)))
