"""Where the name of a loss and what it minimizes disagree: a text that its maintainers can be sent.

It is printed, and sent to nobody.
"""

from __future__ import annotations

from collections.abc import Callable

from kl_companion.auditing import OBJECTIVES, Audit, Finding
from kl_companion.auditing.fit.explanations import UNITS
from kl_companion.auditing.judgment.summary import NO_OBJECTIVE, divergence_of, number, rows, terms
from kl_companion.auditing.judgment.words import divergence_words
from kl_companion.auditing.repair.remedies import lines_for
from kl_companion.auditing.worlds.targets import wanted_objectives
from kl_companion.divergences import get_divergence
from kl_companion.frameworks.history.audits import NOT_THERE, ReleaseFinding, audit_shipped
from kl_companion.frameworks.history.reproduction import FARTHEST, GRADIENTS, formula_of, reproduction
from kl_companion.frameworks.history.subjects import FollowedLoss
from kl_companion.frameworks.history.wheels import wheel_of
from kl_companion.frameworks.installed import Distribution, digest_of, line_of
from kl_companion.frameworks.shipped import Shipped


def keeps_promise(e: ReleaseFinding, promise: str) -> bool:
    """Whether what is minimized on fresh samples, near the reference and far from it, is what was promised.

    Args:
        e: A finding; a release without the loss breaks no promise.
        promise: As ``want`` of `kl_companion.audit`.
    """
    if e.on_policy == NOT_THERE:
        return True
    wanted = wanted_objectives(promise)
    for said in e.on_policy.split("; at large log-ratios "):
        names, _, coefficients = said.partition(" (")  # regularizers first
        kept = [n for n in names.split(" + ") if n not in OBJECTIVES or OBJECTIVES[n].regularizer]
        if len(kept) != 1 or kept[0] not in wanted or coefficients.startswith("-"):
            return False
    return True


def report(
    subject: FollowedLoss, release: Distribution, progress: Callable[[str], None] | None = None
) -> str:
    """The text, in Markdown; "" where the loss minimizes what its name promises.

    Raises:
        Unavailable: the release has no such loss.
    """
    shipped = subject.ship(release, {})
    audit = audit_shipped(subject.name, shipped, want=subject.promise, progress=progress)
    if audit.met:
        return ""
    formula = formula_of(shipped.loss) if shipped.sampled and subject.promise in GRADIENTS else ""
    place = f"`{shipped.place.file}:{line_of(release, shipped.place)}`, `{shipped.place.function}`"
    found = f"{_said(audit.main, subject.promise)}{_value(audit, subject.promise)}"
    blocks = [
        f"# {_title(audit, subject.promise)}: {subject.title} ({release.name} {release.version})",
        f"This is about {release.name} {release.version}, {subject.title}. We take the divergence that it is "
        f"named for to be {_with_direction(subject.promise)}. On samples of the policy that is trained, its "
        f"expected gradient is {found}. If that is intended, a sentence in the documentation would settle "
        "it.",
        "## What was looked at",
        _facts(audit, shipped, release, place, clamped=".clamp" in formula and bool(audit.main.matches)),
        "## Reproduction",
        _reproduction(audit, formula, place, subject.promise),
        "## Suggested wording for the documentation",
        f"> On samples of the current policy, the expected gradient of this term is {found}.",
        f"## A change with the gradient of the {divergence_words(subject.promise)}",
        _change(subject, release),
    ]
    return "\n\n".join(blocks) + "\n"


def _with_direction(divergence: str) -> str:
    return OBJECTIVES[f"token_{divergence}"].words.partition(", of the next")[0]


def _title(audit: Audit, promise: str) -> str:
    found, wanted = terms(audit.main), divergence_words(promise)
    of = divergence_of(found[0].objective) if len(found) == 1 else ""
    if audit.main.zero:
        return f"Expected gradient is zero, not that of the {wanted}"
    if of and of != promise:
        return f"Gradient of the {divergence_words(of)}, not of the {wanted}"
    return f"Gradient differs from that of the {wanted}"


def _said(finding: Finding, promise: str) -> str:
    """What the expected gradient is, as the rest of a sentence."""
    if finding.zero:
        return "zero"
    parts = []
    for t in terms(finding):
        size = "" if abs(t.coefficient) == 1 else f"{number(abs(t.coefficient))} times "
        unit = f", divided by the {UNITS[t.unit]}" if UNITS.get(t.unit) else ""
        of = divergence_of(t.objective)
        level = "whole answers" if "sequence" in t.objective else "each next token"
        words = f"{_with_direction(of)}, of {level}" if of else OBJECTIVES[t.objective].words
        parts.append(f"{'minus ' if t.sign < 0 else ''}{size}{words}{unit}")
    if not parts:
        return f"not that of the {divergence_words(promise)}, nor of another divergence known to us"
    return f"that of {', plus '.join(parts)}"


def _value(audit: Audit, promise: str) -> str:
    """What the value is good for, where it is."""
    wanted = wanted_objectives(promise)
    if wanted.isdisjoint(audit.main.value_matches):
        return ""
    fresh = [f for f in audit.findings if f.condition and f.condition.eos and not f.condition.off_policy]
    near = " near the reference" if any(wanted.isdisjoint(f.value_matches) for f in fresh) else ""
    return f"; its value{near} is an unbiased estimate of the {divergence_words(promise)}"


def _facts(audit: Audit, shipped: Shipped, release: Distribution, place: str, *, clamped: bool) -> str:
    wheel = wheel_of(release)
    built = f"wheel built {wheel.date}, " if wheel.date else "wheel "
    lines = [
        f"Release: {release.name} {release.version}, {built}SHA-256 `{wheel.sha256}`",
        f"Option: `{shipped.option}`",
    ]
    if shipped.beta is not None:
        off = " (off until it is turned on)" if shipped.beta == 0 else ""
        lines.append(f"Coefficient as shipped: {shipped.beta:g}{off}")
    lines.append(f"Code: {place}; the SHA-256 of the file begins with `{digest_of(release, shipped.place)}`")
    unnamed = "no divergence known to us" + (", because of the clamp" if clamped else "")
    for where, what in rows(audit.findings):
        lines.append(f"Minimized on {where}: {what.replace(NO_OBJECTIVE, unnamed)}")
    note = (
        "These are expected gradients of the release's own code, with every answer of small models counted. "
        "Near the reference the log-ratios of a token are below 1, far from it up to 5. Fresh samples come "
        "from the policy that is trained, stale ones from an earlier one. A student is a policy here, and "
        "its teacher the reference."
    )
    return "\n".join(f"- {line}" for line in lines) + f"\n\n{note}"


def _reproduction(audit: Audit, formula: str, place: str, promise: str) -> str:
    shown = reproduction(formula, promise) if formula else None
    if shown is None:
        why = "no formula of one line that we know is this loss"
        if formula:
            promised = divergence_words(promise)
            why = f"answers of one token have the gradient of the {promised}, and longer ones another"
        return f"There is no short reproduction: {why}. The code is {place}."
    script, output = shown
    longer = ""
    if any(OBJECTIVES[t.objective].lengths_only for t in terms(audit.main)):
        longer = " In longer answers the tokens of each are averaged, which makes of it what is listed above."
    return (
        "Plain PyTorch, and nothing else; the expectation over three tokens is exact.\n\n"
        f"```python\n{script}```\n\nIt prints\n\n```text\n{output}```\n\n"
        "On answers of one token, `loss` in this script has the value and the gradient of the release's "
        f"{place}, to nine digits, at log-ratios from -{FARTHEST:g} to {FARTHEST:g}.{longer}"
    )


def _change(subject: FollowedLoss, release: Distribution) -> str:
    """An option of theirs that was tried on this release, and the lines that the script has tried."""
    lines = "\n".join(lines_for(get_divergence(subject.promise), "token"))
    code = (
        "In code, as a term of the loss, per token and averaged over all tokens of a batch (`rho` is 1 on "
        f"samples of the current policy):\n\n```python\n{lines}\n```"
    )
    for options in subject.instead:
        try:
            shipped = subject.ship(release, options)
        except ValueError:  # an option, or a value, that this release has not
            continue
        if audit_shipped(subject.name, shipped, off_policy=False, want=subject.promise).met:
            chosen = ", ".join(f"{name}={value}" for name, value in options.items())
            return (
                f"An option has it already: with `{chosen}` the expected gradient of this release on fresh "
                f"samples is that of the {divergence_words(subject.promise)}, looked at in the same "
                f"way.\n\n{code}"
            )
    return code
