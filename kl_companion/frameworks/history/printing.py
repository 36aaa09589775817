"""Past releases on the command line: ``frameworks history trl`` and ``audit trl.grpo --release``."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import groupby
from typing import Any

from kl_companion.auditing.judgment.term import verdict_lines
from kl_companion.frameworks.history.audits import NOT_THERE, ReleaseFinding, anchors, audit_shipped, follow
from kl_companion.frameworks.history.found import (
    FILE,
    found,
    in_plain_words,
    moved,
    stretches,
    versions_of,
    write,
)
from kl_companion.frameworks.history.reports import keeps_promise, report
from kl_companion.frameworks.history.subjects import project, subject
from kl_companion.frameworks.history.wheels import command, fetch, key, published, release
from kl_companion.frameworks.installed import Unavailable, line_of

Progress = Callable[[str], None] | None


def print_history(name: str, *, every: bool = False) -> None:
    """Print what the losses of a project minimize, release by release, or where that changed.

    Raises:
        ValueError: an unknown project.
    """
    of = project(name)
    entries = found(of.name)
    if not entries:
        raise ValueError(
            f"nothing is known of {of.distribution}'s releases yet: {command(of.name)}, then update"
        )
    titles = {s.name: s.title for s in of.subjects}
    for loss, group in groupby(entries, key=lambda e: e.subject):
        print("\n".join(_wrapped(f"{loss}: {titles.get(loss, loss)}", "")))
        for line in _story(list(group), every):
            print(line)
        print()


def _story(entries: list[ReleaseFinding], every: bool) -> Iterable[str]:
    """A paragraph per release, or per stretch of releases with one verdict."""
    for stretch in [[e] for e in entries] if every else stretches(entries):
        first = stretch[0]
        yield f"  {versions_of(stretch)}" + (f" ({first.date})" if first.date else "")
        yield from lines_of(stretch[-1])


def lines_of(e: ReleaseFinding, indent: str = "      ") -> list[str]:
    """What is known of a loss in a release, one thing per line."""
    if e.on_policy == NOT_THERE:
        return _wrapped(f"not there: {e.where}", indent)
    beta = {"": "", "0": "; off until you turn it on"}.get(e.beta, f"; beta = {e.beta} is shipped")
    return [
        *_wrapped(f"{e.option}{beta}", indent),
        *_wrapped(f"fresh samples: {in_plain_words(e.on_policy)}", indent),
        *_wrapped(f"stale samples: {in_plain_words(e.off_policy)}", indent),
        *_wrapped(f"{e.where} (sha256 {e.digest})", indent),
    ]


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text, 96, initial_indent=indent, subsequent_indent=f"{indent}  ", break_on_hyphens=False
    )


def fetch_releases(name: str, versions: Iterable[str], progress: Progress = None) -> None:
    """Fetch releases of a project, those that its history begins with unless some are named.

    Raises:
        ValueError: an unknown project or release.
        ConnectionError: no package index is reached.
    """
    of = project(name)
    known = published(of.distribution)
    wanted = tuple(versions) or anchors(known, of.first)
    for version in wanted:
        if version not in known:
            raise ValueError(
                f"{of.distribution} has no release {version}, expected one of {', '.join(known)}"
            )
    for version in wanted:
        if progress is not None:
            progress(f"{of.distribution} {version}")
        print(fetch(of.distribution, version).root)


def print_reports(
    name: str, version: str | None = None, progress: Progress = None, losses: Collection[str] | None = None
) -> None:
    """Print, for the maintainers of a project, where a loss is not what it is named for.

    Args:
        name: The project.
        version: A release that was fetched; None for the newest that is known.
        progress: Called with a line of text per loss and per condition.
        losses: Of the project; None for all.

    Raises:
        ValueError: an unknown project; as `Unavailable`, a release that was not fetched.
    """
    of = project(name)
    if version is None:
        version = max((e.version for e in found(of.name)), key=key, default=None)
    if version is None:
        raise ValueError(f"nothing is known of {of.distribution}'s releases yet, expected an update first")
    unpacked, kept = release(of.distribution, version), []
    for each in of.subjects:
        if losses is not None and each.name not in losses:
            continue
        try:
            text = report(each, unpacked, progress)
        except Unavailable:  # this release has no such loss
            continue
        kept += [] if text else [each.name]
        print(text, end="\n" if text else "")
    if kept:
        print(f"{of.distribution} {version}: what it is named for is minimized by {', '.join(kept)}")


def update(name: str, progress: Progress = None) -> int:
    """Look at every release that is not known yet, say what moved, and keep what was found.

    At the end stand the reports on losses of the newest release that are new or whose verdict moved, and
    the names of others that are not what they are named for.

    Returns:
        1 if a verdict moved in a release that was not known, else 0.

    Raises:
        ValueError: an unknown project.
        ConnectionError: no package index is reached.
    """
    of = project(name)
    before = found(of.name)
    known = {(e.subject, e.version): e for e in before}
    newest = {e.subject: e.version for e in before}
    entries = follow(of, published(of.distribution), lambda v: fetch(of.distribution, v), known, progress)
    write(of.name, entries)
    added = len(entries) - len(before)
    print(f"{of.distribution}: {added} findings more, {len(entries)} in all, in {FILE.name}")
    changed = [
        (old, new) for old, new in moved(entries) if key(new.version) > key(newest.get(new.subject, "0"))
    ]
    for old, new in changed:
        print(f"\n{new.subject} changed in {new.version} ({new.date}); in {old.version}:")
        print("\n".join(lines_of(old)))
        print(f"  since {new.version}:")
        print("\n".join(lines_of(new)))
    last = {e.subject: e for e in entries}
    broken = [s.name for s in of.subjects if s.name in last and not keeps_promise(last[s.name], s.promise)]
    new_to_us = {e.subject for _, e in changed} | {name for name in broken if name not in newest}
    if reported := [name for name in broken if name in new_to_us]:
        print()
        print_reports(of.name, last[reported[0]].version, progress, reported)
    if others := [name for name in broken if name not in new_to_us]:
        print(
            f"not what they are named for, as before: {', '.join(others)}; "
            f"their reports: kl-companion frameworks report {name}"
        )
    return int(bool(changed))


def print_release(
    name: str,
    version: str,
    options: Mapping[str, Any],
    *,
    want: str | None = None,
    off_policy: bool | None = None,
    scale: float | None = None,
    progress: Progress = None,
) -> int:
    """Print what a loss of a past release minimizes, with its defaults or with options in their place.

    Returns:
        0; 1 if it does not minimize ``want``.

    Raises:
        ValueError: an unknown loss or option; as `Unavailable`, a release that was not fetched, or that has
            no such loss.
    """
    of, chosen = subject(name)
    found_release = release(of.distribution, version)
    shipped = chosen.ship(found_release, options)
    audit = audit_shipped(name, shipped, off_policy=off_policy, scale=scale, want=want, progress=progress)
    print("\n".join(verdict_lines(audit)))
    print(f"  release: {of.distribution} {version}")
    print(f"  option: {shipped.option}")
    if shipped.beta is not None:
        print(f"  beta as shipped: {shipped.beta:g}" + (" (off)" if shipped.beta == 0 else ""))
    place = shipped.place
    print(f"  where: {place.file}:{line_of(found_release, place)}, {place.function}")
    return int(audit.met is False)
