"""What the book recommends, written into its pages from the one table of recommendations.

The directive ``{decision-guide}`` is the guide of the first page: three questions, and the answer to each of
their combinations. Every answer is written into the page; `kl_guide.js` shows the one that the form asks for.
Without scripts, and on paper, all of them stand one after the other.

The directive ``{recommended} NAME`` is a table of such rows: what to log, what to write with samples of the
policy or of an older one, and what not to write.
"""

from __future__ import annotations

import html
from collections.abc import Callable
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective

from kl_book.words import gradient_words, typeset
from kl_companion import recommendations as table
from kl_companion.auditing.worlds.objectives import OBJECTIVES
from kl_companion.recommendations import Recommendation

SOURCES = sorted(Path(table.__file__).parent.glob("*.py"))
TITLES = {
    "token": "reverse KL of every token",
    "sequence": "reverse KL of whole answers",
    "forward": "forward KL of every token",
}
OBJECTIVE_TITLES = {
    "token_reverse_kl": TITLES["token"],
    "sequence_reverse_kl": TITLES["sequence"],
    "token_forward_kl": TITLES["forward"],
}
# what a cheat sheet has, by the keys of the table
PLAIN = {
    "log-near": "log the reverse KL, close to the reference",
    "loss-token-policy": "loss: reverse KL of tokens",
    "loss-sequence-policy": "loss: reverse KL of answers",
    "loss-forward-policy": "loss: forward KL of tokens",
    "reward-token-policy": "reward: subtract from each token's own reward",
    "reward-sequence-policy": "reward: subtract from the answer's reward",
    "loss-token-older": "loss, older samples: reverse KL of tokens",
    "loss-sequence-older": "loss, older samples: reverse KL of answers",
}


class Written(SphinxDirective):
    """A directive whose content is made of the table; its page is written again when the table changes."""

    def parsed(self, text: str, into: nodes.Element) -> nodes.Element:
        """The nodes of Markdown text, added to an element."""
        for path in SOURCES:
            self.env.note_dependency(str(path))
        self.state.nested_parse(StringList(text.splitlines(), str(SOURCES[0])), 0, into)
        return into


class DecisionGuide(Written):
    """``{decision-guide}``: the form, and the answers below it."""

    def run(self) -> list[nodes.Node]:
        """A raw form and one container per answer, whose Markdown is parsed as part of the page."""
        whole = nodes.container(classes=["kl-guide"])
        whole += nodes.raw("", form(), format="html")
        for entry in table.GUIDE:
            classes = [f"{name}-{getattr(entry, name)}" for name in table.QUESTIONS]
            whole += self.parsed(markdown(entry), nodes.container(classes=["kl-answer", *classes]))
        return [whole]


class Recommended(Written):
    """``{recommended} NAME``: one of the tables of `TABLES`."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """The table's nodes."""
        name = self.arguments[0]
        if name not in TABLES:
            raise self.error(f"no table of recommendations {name!r}, expected one of {', '.join(TABLES)}")
        return self.parsed(TABLES[name](), nodes.container()).children


class RecommendedCode(Written):
    """``{recommended-code} KEY``: the lines of one answer of the guide."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """The block."""
        entries = {entry.key: entry for entry in table.GUIDE}
        if self.arguments[0] not in entries:
            raise self.error(f"no answer {self.arguments[0]!r}, expected one of {', '.join(entries)}")
        return self.parsed("\n".join(code(entries[self.arguments[0]])), nodes.container()).children


def form() -> str:
    """The three questions as a form, hidden where no script could read it."""
    fields = []
    for name, (label, answers) in table.QUESTIONS.items():
        options = "".join(
            f'<option value="{html.escape(value)}">{html.escape(text)}</option>'
            for value, text in answers.items()
        )
        fields.append(f'<label>{html.escape(label)} <select name="{name}">{options}</select></label>')
    return f'<form class="kl-questions" hidden autocomplete="off">{"".join(fields)}</form>'


def markdown(entry: Recommendation) -> str:
    """One answer: its conditions in words, what to write and to log, what not to write, and why."""
    samples, place, want = (table.QUESTIONS[name][1][getattr(entry, name)] for name in table.QUESTIONS)
    log = table.logged_for(entry)
    lines = [
        f"*Samples from {samples}; the KL in the {place}; wanted: {want}.*",
        "",
        f"**{table.VERBS[entry.place]}** {entry.name}: it {gradient(entry.objective)}.",
        "",
        *code(entry),
        "",
        f"**Log** {log.name}: {log.inline}{elsewhere(log)}.",
        "",
    ]
    if entry.with_logits:
        lines += [f"**From whole distributions** take `{entry.with_logits}`: the same, less noise.", ""]
    pitfalls = [p for p in entry.pitfalls if p.lines]
    if pitfalls:
        found = "; ".join(f"{p.name} {gradient(p.objective)}" for p in pitfalls)
        lines += [f"**Beware**: {found}.", ""]
    return "\n".join([*lines, f"**Explained in** {{ref}}`{entry.chapter}`."])


def gradient(objective: str) -> str:
    """What the gradient of a term is, as the end of a sentence: the three KLs as the questions name them."""
    text = gradient_words(objective)
    for name, words in OBJECTIVE_TITLES.items():
        text = text.replace(OBJECTIVES[name].short, f"the {words}")
    return text.replace(" - ", " − ")


def gradient_cell(objective: str) -> str:
    """The same as a cell of a table."""
    plain = {"zero": "nothing: it is zero in expectation", "other": "no known objective"}
    return plain.get(objective, typeset(objective))


def code(entry: Recommendation) -> list[str]:
    """Its lines as a block; with a link to the editor where they make a loss (`kl_paste`)."""
    marked = [":class: try"] * ("loss =" in entry.code)
    return ["```{code-block} python", *marked, *entry.code.splitlines(), "```"]


def elsewhere(log: Recommendation) -> str:
    """Where to look for the situations that the guide does not ask for."""
    return (
        "; far from the reference {ref}`log another estimate <which-to-log>`" if log.key == "log-near" else ""
    )


def rows(header: tuple[str, ...], cells: list[tuple[str, ...]]) -> str:
    """A Markdown table."""
    lines = [header, tuple(":--" for _ in header), *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def written(place: str, arguments: str) -> str:
    """A cell: the arguments, and where."""
    return f"`{arguments}` in the {place}"


def title(entry: Recommendation) -> str:
    """What is wanted, in words."""
    return entry.when or TITLES[entry.want]


def as_right(entry: Recommendation) -> str:
    """A cell: the terms that have the same gradient, and what they are good for."""
    exact = [f'`"{entry.with_logits}"`, from whole distributions with less noise'] * bool(entry.with_logits)
    return "; ".join(exact + [f"`{t.arguments}`, {t.note}" for t in entry.alternatives])


def to_log(forward: bool) -> str:
    """What to log in which situation."""
    return rows(
        ("Your situation", "Log", "Why"),
        [
            (r.when.removeprefix("forward KL, "), f"{r.name}: `{r.arguments}`", r.why)
            for r in table.LOGGED
            if (r.want == "forward") == forward
        ],
    )


def to_write(samples: str) -> str:
    """What to put into loss or reward, and the terms that are right as well."""
    cells = [
        (f"{title(r)} (`{r.objective}`)", written(r.place, r.arguments), as_right(r))
        for r in table.TRAINED
        if r.samples == samples and r.arguments
    ]
    return rows(("You want (and the audit finds)", "Write", "Right as well"), cells)


def not_to_write(samples: str) -> str:
    """What the usual alternatives have the gradient of."""
    cells = [
        (title(r), written(r.place, p.arguments), gradient_cell(p.objective))
        for r in table.TRAINED
        if r.samples == samples
        for p in r.pitfalls
        if p.arguments
    ]
    return rows(("You want", "and write", "Its gradient is that of"), cells)


def lengths() -> str:
    """Terms that are divided by the length of each answer."""
    return rows(
        ("If you divide by the length", "the gradient is that of"),
        [(written("loss", t.arguments), gradient_cell(t.objective)) for t in table.LENGTHS],
    )


def plain() -> str:
    """What to write for the usual purposes, in plain PyTorch."""
    cells = []
    for key, purpose in PLAIN.items():
        entry = table.RECOMMENDATIONS[key]
        lines = "<br>".join(f"`{line}`" for line in entry.lines.splitlines())
        cells.append((purpose, entry.name, lines))
    return rows(("Purpose", "Term", "In PyTorch"), cells)


def log_list() -> str:
    """What to log in which situation, as a list for a page with little room."""
    return "\n".join(f"* {entry.when}: **{entry.name}**" for entry in table.LOGGED)


TABLES: dict[str, Callable[[], str]] = {
    "log-reverse": lambda: to_log(False),
    "log-forward": lambda: to_log(True),
    "log-list": log_list,
    "plain": plain,
    "policy": lambda: to_write("policy"),
    "older": lambda: to_write("older"),
    "not-policy": lambda: not_to_write("policy"),
    "not-older": lambda: not_to_write("older"),
    "lengths": lengths,
}


def setup(app: Any) -> dict[str, Any]:
    """Register the directives."""
    app.add_directive("decision-guide", DecisionGuide)
    app.add_directive("recommended", Recommended)
    app.add_directive("recommended-code", RecommendedCode)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
