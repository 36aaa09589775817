"""The table at the head of the chapter on frameworks: what you have, what it minimizes, what to write.

A row is a setting of a framework as its users write it. The defaults stand open; the other settings and what
past releases did are folded below them. Every verdict is read from the tables `framework_audit` and
`framework_recipes` and from the findings of past releases.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

import pandas as pd

from kl_book import tables
from kl_companion.frameworks import FRAMEWORKS, framework, setting, settings
from kl_companion.frameworks.history.audits import NOT_THERE, ReleaseFinding
from kl_companion.frameworks.history.found import found, in_plain_words, stretches, versions_of
from kl_companion.frameworks.records import Setting

WHERE = {
    "near": ("on-policy", 1.0),
    "far from the reference": ("on-policy", 4.0),
    "on stale samples": ("off-policy", 1.0),
}
_PREFIXED = re.compile(r"([a-z_][\w.]*): (\w[\w.]*=.*)")
_SAID_ABOVE = ("token_reverse_kl", "sequence_reverse_kl", "token_forward_kl", "token_jensen_shannon")
_REVERSE = {"token_reverse_kl": "of tokens", "sequence_reverse_kl": "of whole answers"}
_HEADERS = ("You have", "It minimizes", "For the gradient of a reverse KL write")


class FrameworkTable(NamedTuple):
    """HTML for a notebook and for a page; as text it says how many settings it has."""

    html: str
    settings: tuple[str, ...]

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return f"FrameworkTable: {len(self.settings)} settings"


def option_lines(option: str) -> list[str]:
    """An option as lines of a configuration: ``actor: a=1, b=2`` is ``actor:``, ``  a=1`` and ``  b=2``."""
    lines: list[str] = []
    for part in option.split("; "):
        prefixed = _PREFIXED.fullmatch(part)
        fields = re.split(r", (?![^(]*\))", prefixed[2]) if prefixed else []
        plain = prefixed and all(re.match(r"\w[\w.]*=", f) for f in fields)
        lines += (
            [f"{prefixed[1]}:", *(f"  {f}" for f in fields)]
            if prefixed and plain
            else re.split(r" (?=--)", part)
        )
    return lines


def framework_table() -> FrameworkTable:
    """Every framework with its defaults, its other settings, and what its past releases did.

    Raises:
        FileNotFoundError: a result table is missing; the message says how to make it.
    """
    first = _settings()
    return _table((_body(name, first[first.framework == name]) for name in FRAMEWORKS), first.index)


def lines_of(shorts: Mapping[str, str]) -> FrameworkTable:
    """Return some settings in a line each: the option that decides, the objective, and what to change.

    Args:
        shorts: Names of settings to the part of their option that is shown, framework by framework.

    Raises:
        FileNotFoundError: as `framework_table`.
    """
    first = _settings()
    names = dict.fromkeys(first.framework[name] for name in shorts)
    bodies = []
    for name in names:
        rows = first[first.framework == name]
        lines = [_line(s, rows, shorts[s]) for s in shorts if s in rows.index]
        bodies.append(f"<tbody>{''.join([_title(name, rows), *lines])}</tbody>")
    return _table(bodies, shorts)


def _line(name: str, rows: pd.DataFrame, short: str) -> str:
    near = escape(rows.near[name])
    return _row(f"<code>{escape(short)}</code>", f"<b>{near}</b>{_before(name)}", _change(name, rows))


def _before(name: str) -> str:
    """Return what the last release with another objective did, or ""."""
    past = [s for s in stretches(found(name.split(".")[0])) if s[0].subject == name]
    same = {NOT_THERE, *(s[-1].on_policy for s in past[-1:])}
    other = next((s for s in reversed(past) if s[-1].on_policy not in same), None)
    return _small(f"{versions_of(other)}: {escape(in_plain_words(other[-1].on_policy))}") if other else ""


def _change(name: str, rows: pd.DataFrame) -> str:
    """Return the options that the remedy of the same placement has and the setting has not."""
    own = setting(name)
    if rows.objective[name] in _REVERSE and not own.penalty_divided:
        return "keep it"
    remedy = own.framework.remedy
    instead = setting((remedy.sequence if own.placement == "reward" else remedy.token) or name)
    algorithm = instead.penalty_divided
    lines = option_lines(instead.option) + option_lines(algorithm.instead if algorithm else "")
    added = [line.strip() for line in lines if line and line not in option_lines(own.option)]
    return "<br>".join(f"<code>{escape(line)}</code>" for line in added)


def _table(bodies: Iterable[str], settings: Iterable[str]) -> FrameworkTable:
    head = "".join(f'<th scope="col">{words}</th>' for words in _HEADERS)
    text = f'<table class="kl-frameworks"><thead><tr>{head}</tr></thead>{"".join(bodies)}</table>'
    # on a narrow screen it scrolls, which a keyboard has to reach
    box = '<div class="kl-frameworks" tabindex="0" role="region" aria-label="Frameworks">'
    return FrameworkTable(f"{box}{text}</div>", tuple(settings))


def _settings() -> pd.DataFrame:
    """What is known of every setting, by its name."""
    audited, recipes = tables.load("framework_audit"), tables.load("framework_recipes")
    cases = audited.pivot(index="setting", columns=["sampling", "scale"], values="minimizes")
    first = audited.drop_duplicates("setting").set_index("setting")
    for name, case in WHERE.items():
        first[name] = cases[case]
    at = [audited.setting, audited.sampling, audited.scale]
    near = audited.set_index(at).xs(WHERE["near"], level=[1, 2])
    first["objective"], first["practice"] = near.objective, near.practice
    first["beta"] = recipes.drop_duplicates("setting").set_index("setting").meaning
    return first


def _title(name: str, rows: pd.DataFrame) -> str:
    kind = "its installed functions" if rows.kind.iloc[0] == "installed" else "formulas"
    title = f'<tr class="kl-framework"><th colspan="3" scope="rowgroup">{escape(framework(name).title)} '
    return title + f"<small>{escape(rows.version.iloc[0])}, {kind}</small></th></tr>"


def _body(name: str, rows: pd.DataFrame) -> str:
    known = framework(name)
    order = [s.name for s in settings(name)]
    rows = rows.loc[sorted(rows.index, key=lambda name: (rows.purpose[name] != "RL", order.index(name)))]
    shown = rows[rows.default != "no"]
    if shown.empty:
        shown = rows[rows.index.isin([known.remedy.sequence, known.remedy.token])]
    others = rows.drop(shown.index)
    parts = [_title(name, rows), *_with_remedy(shown, rows)]
    if len(others):
        parts.append(_fold(f"{len(others)} other settings", (_setting(s, rows) for s in _records(others))))
    past = found(name)
    if len({finding.version for finding in past}) > 1:
        parts.append(_fold("Past releases", _past(past)))
    return f"<tbody>{''.join(parts)}</tbody>"


def _with_remedy(shown: pd.DataFrame, rows: pd.DataFrame) -> list[str]:
    """Settings of a framework as rows that say what to write instead."""
    return [_setting(s, rows, _instead(s, rows)) for s in _records(shown)]


def _records(rows: pd.DataFrame) -> list[dict[str, Any]]:
    return rows.reset_index().to_dict("records")


def _fold(summary: str, rows: Iterable[str]) -> str:
    inside = f"<table><tbody>{''.join(rows)}</tbody></table>"
    return (
        f'<tr class="kl-folded"><td colspan="3"><details><summary>{summary}</summary>'
        f"{inside}</details></td></tr>"
    )


def _row(*cells: str) -> str:
    named = zip(cells, _HEADERS, strict=False)
    inside = "".join(f'<td data-label="{h}">{c}</td>' for c, h in named)
    return f'<tr class="kl-setting">{inside}</tr>'


def _lines(option: str) -> str:
    return "<br>".join(f"<code>{escape(line)}</code>" for line in option_lines(option))


def _small(*texts: str) -> str:
    return "".join(f"<small>{text}</small>" for text in texts if text)


def _setting(s: dict[str, Any], rows: pd.DataFrame, instead: str | None = None) -> str:
    default = f"the default {escape(s['default'])}" if s["default"] != "no" else ""
    have = _lines(s["option"]) + _small(default, f"audited as <code>{s['setting']}</code>")
    differs = [f"{where}: {escape(s[where])}" for where in list(WHERE)[1:] if s[where] != s["near"]]
    beta = escape(_beta(s["beta"])) if isinstance(s["beta"], str) else ""
    practice = "" if s["objective"] in _SAID_ABOVE else escape(s["practice"].replace("none", ""))
    minimizes = f"<b>{escape(s['near'])}</b>" + _small(practice, *differs, beta)
    return _row(have, minimizes, *([] if instead is None else [instead]))


def _beta(meaning: str) -> str:
    """The first part of what beta means, and where it has no effect; numbers stay in the table of recipes."""
    parts = re.sub(r" \(prompts.*\)", "", meaning).split("; ")
    lost = [part for part in parts[1:] if part.startswith("no effect")]
    first = parts[0].partition(":")[0]
    return "; ".join([*([f"the KL acts with {first}"] if first.startswith("β") else []), *lost])


def _instead(s: dict[str, Any], rows: pd.DataFrame) -> str:
    """Lines for the gradient of a reverse KL, of tokens and of whole answers, or that they stand there."""
    known = framework(s["framework"])
    if s["objective"] in _REVERSE and not setting(s["setting"]).penalty_divided:
        return f"keep it: it is the KL {_REVERSE[s['objective']]}"
    if s["purpose"] == "distillation":
        nearest = _nearest(s, rows)
        return _level("of tokens", _lines(nearest)) if nearest else "no option"
    named = (("of tokens", known.remedy.token), ("of whole answers", known.remedy.sequence))
    said = "".join(_level(level, _undivided(setting(name))) for level, name in named if name)
    return (said or "no option") + _small(escape(known.remedy.words))


def _undivided(chosen: Setting) -> str:
    """The lines of a setting, and what else to write so that its penalty is not divided with the rewards."""
    algorithm = chosen.penalty_divided
    if algorithm is None:
        return _lines(chosen.option)
    if algorithm.instead:
        undivided = "so that rewards are not divided by their standard deviation"
        return f"{_lines(chosen.option)}<br>{_lines(algorithm.instead)}{_small(undivided)}"
    no_option = f"divided by the standard deviation of the {algorithm.over}, which no option turns off"
    return _lines(chosen.option) + _small(no_option)


def _level(level: str, lines: str) -> str:
    return f'<div class="kl-level"><small>{level}</small>{lines}</div>'


def _nearest(s: dict[str, Any], rows: pd.DataFrame) -> str:
    """The option for distillation that has the gradient of the KL of tokens and is most like a given one."""
    same = rows[(rows.purpose == s["purpose"]) & (rows.objective == "token_reverse_kl")]
    same = same[same["far from the reference"] == same.near]  # without a clamp, which none needs
    alike = [(difflib.SequenceMatcher(None, s["option"], o).ratio(), o) for o in same.option]
    return max(alike, default=(0.0, ""))[1]


def _past(findings: Sequence[ReleaseFinding]) -> Iterator[str]:
    """What past releases did, a row for each stretch of releases with one verdict, the newest first."""
    order = list(dict.fromkeys(e.subject for e in findings))
    newest_first = reversed(list(stretches(findings)))
    for stretch in sorted(newest_first, key=lambda s: order.index(s[0].subject)):
        new = stretch[-1]
        if new.on_policy == NOT_THERE:
            continue
        same = new.off_policy == new.on_policy
        stale = "" if same else f"on stale samples: {in_plain_words(new.off_policy)}"
        minimizes = f"<b>{escape(in_plain_words(new.on_policy))}</b>"
        yield _row(
            _lines(new.option) + _small(f"{versions_of(stretch)}, audited as <code>{new.subject}</code>"),
            minimizes + _small(escape(stale)),
        )
