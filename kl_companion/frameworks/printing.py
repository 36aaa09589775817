"""The settings of frameworks on the command line: ``list frameworks`` and ``audit trl.grpo``."""

from __future__ import annotations

import sys
from collections.abc import Callable

from kl_companion.frameworks.installed import Unavailable
from kl_companion.frameworks.meaning import what_beta_means, what_to_set
from kl_companion.frameworks.recipes import FrameworkRecipe
from kl_companion.frameworks.records import Setting
from kl_companion.frameworks.registry import FRAMEWORKS, framework, matching, settings
from kl_companion.frameworks.verdicts import audit_setting
from kl_companion.frameworks.worth import worth

EVERY = "frameworks"


def is_framework(target: str) -> bool:
    """Whether ``audit`` was asked for a framework: its name, ``name.setting``, or ``frameworks``."""
    return ".py:" not in target and target.partition(".")[0] in (EVERY, *FRAMEWORKS)


def print_list() -> None:
    """Every framework with what is installed of it, and its settings below."""
    for name in FRAMEWORKS:
        known = framework(name)
        print(f"{known.title} ({known.status})")
        for chosen in settings(name):
            default = f"  [default {chosen.default}]" if chosen.default else ""
            print(f"  {chosen.name:<46}  {chosen.option}{default}")


def _chosen(target: str) -> tuple[Setting, ...]:
    return settings() if target == EVERY else matching(target)


def print_audits(
    target: str,
    *,
    want: str | None = None,
    off_policy: bool | None = None,
    scale: float | None = None,
    progress: Callable[[str], None] | None = None,
) -> int:
    """Print what the settings minimize whose names begin with ``target``.

    A framework that is missing gives its message, once, and the others go on.

    Returns:
        0; 1 if one of them does not minimize ``want``, or does so only where its penalty is not divided with
        the rewards, as it is by default; 2 if nothing could be audited.

    Raises:
        ValueError: no setting is named so, or an unknown ``want``.
    """
    missing: dict[str, str] = {}
    judged = []
    for chosen in _chosen(target):
        if chosen.framework.name in missing:
            continue
        if progress is not None:
            progress(chosen.name)
        try:
            found = audit_setting(chosen, off_policy=off_policy, scale=scale, want=want)
            text = str(found)
        except Unavailable as error:
            missing[chosen.framework.name] = str(error)
            print(f"kl-companion: {error}", file=sys.stderr)
            continue
        print(text, flush=True)
        met, kept = found.audit.met, print_worth(chosen)
        if met and not kept:
            met = False
            print("  It is what was wanted only undivided, and is divided by default.\n", flush=True)
        judged.append(met)
    if not judged:
        return 2
    return int(False in judged)


def print_worth(chosen: Setting) -> bool:
    """Print what beta means in a setting's algorithms; return whether it is a coefficient by default."""
    kept = True
    for algorithm in chosen.algorithms:
        recipe = FrameworkRecipe(chosen, algorithm)
        found = worth(recipe)
        choice = algorithm.when or "the default"
        print(f"  What β means in {algorithm.name} ({choice}; {recipe.where}): {what_beta_means(found)}.")
        if instead := what_to_set(found):
            print(f"    {instead}", flush=True)
        kept = kept and (found.keeps_beta or found.nothing or bool(algorithm.when))
    print(flush=True)
    return kept
