"""The decision guide of the first page: three questions, and the answer to each of their combinations.

The directive ``{decision-guide}`` names a YAML file. Every answer is written into the page; `kl_guide.js`
shows the one that the form asks for. Without scripts, and on paper, all of them stand one after the other.
"""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

import yaml
from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective


class DecisionGuide(SphinxDirective):
    """``{decision-guide} file.yml``: the form, and the answers below it."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """A raw form and one container per answer, whose Markdown is parsed as part of the page."""
        _, path = self.env.relfn2path(self.arguments[0])
        self.env.note_dependency(path)
        guide = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        whole = nodes.container(classes=["kl-guide"])
        whole += nodes.raw("", form(guide), format="html")
        for entry in guide["guide"]:
            answer = nodes.container(classes=["kl-answer", *(f"{k}-{v}" for k, v in entry["when"].items())])
            self.state.nested_parse(StringList(markdown(guide, entry).splitlines(), path), 0, answer)
            whole += answer
        return [whole]


def form(guide: dict[str, Any]) -> str:
    """The three questions as a form, hidden where no script could read it."""
    fields = []
    for name, question in guide["questions"].items():
        options = "".join(
            f'<option value="{html.escape(value)}">{html.escape(text)}</option>'
            for value, text in question["answers"].items()
        )
        fields.append(
            f'<label>{html.escape(question["label"])} <select name="{name}">{options}</select></label>'
        )
    return f'<form class="kl-questions" hidden autocomplete="off">{"".join(fields)}</form>'


def markdown(guide: dict[str, Any], entry: dict[str, Any]) -> str:
    """One answer: its conditions in words, what to differentiate and to log, what not to write, and why."""
    when = [guide["questions"][name]["answers"][value] for name, value in entry["when"].items()]
    samples, place, want = when
    log = guide["log"]["forward" if entry["when"]["want"] == "forward" else "reverse"]
    weighted = " times the detached ratio" if entry["when"]["samples"] == "older" else ""
    lines = [
        f"*Samples from {samples}; the KL in the {place}; wanted: {want}.*",
        "",
        f"**Differentiate** {entry['term']}: it descends {guide['words'][entry['objective']]}.",
        "",
        "```python",
        *entry["code"].rstrip().splitlines(),
        "```",
        "",
        f"**Log** {log['name']}{weighted}: `{log['code']}`.",
        "",
    ]
    if entry.get("with_logits"):
        lines += [
            f"**From whole distributions** take `{entry['with_logits']}`: the same, less noise.",
            "",
        ]
    if entry["pitfalls"]:
        found = "; ".join(f"{p['term']} descends {descends(guide, p)}" for p in entry["pitfalls"])
        lines += [f"**Beware**: {found}.", ""]
    lines += [f"**Why** {{ref}}`{entry['chapter']}`."]
    return "\n".join(lines)


def descends(guide: dict[str, Any], pitfall: dict[str, Any]) -> str:
    """An objective in words; ``other`` is the gradient of no objective that has a name."""
    return "no KL" if pitfall["objective"] == "other" else guide["words"][pitfall["objective"]]


def setup(app: Any) -> dict[str, Any]:
    """Register the directive."""
    app.add_directive("decision-guide", DecisionGuide)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
