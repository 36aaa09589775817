"""What a page advises: sentences that tell a reader what to log, and what to put into the loss or the reward.

`advice` reads prose only. A sentence is advice where a verb in the imperative takes an estimator ("log K3",
"put K1 into the reward", "never differentiate K1"), where an estimator is called the one to take, or, on
pages and in sections that give advice, where a term and its place stand alone ("K2 in the loss"). `faults`
compares what it says with the one table of recommendations. What a sentence *describes* ("K1 in the loss has
no gradient") is not advice; whether that is true is tested elsewhere.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from kl_companion.recommendations import LOGGED, TRAINED, Recommendation, Term

ROOT = Path(__file__).resolve().parents[2]
BOOK = ROOT / "book"
# pages that give advice from top to bottom; chapters do in their section on practice
GUIDES = ("intro.md", "which_one.md", "cheat_sheet.ipynb", "explorer.ipynb", "README.md")
PRACTICE = "What to do in practice"
OTHER = ("experiments", "ledger", "errata", "refusals", "api")  # generated, or of other people's sentences

ESTIMATOR = re.compile(
    r"(?P<ratio>(?:sg\(rho\)|rho|r)\s+)?"
    r"(?P<name>\bK3\+\+|\bKf\+\+|\bK[1-5]\b(?!\+)|\bk_lambda|\blambda = 1/2|\bexact (?:forward )?KL"
    r"|\b(?:exact|fused|linear)(?:_forward)?_kl\b|\btop_k_\w+)"
    r"(?P<after> with its ratio| times (?:its|the) \w*\s?ratio)?"
)
CODE_NAMES = {"k1": "K1", "k2": "K2", "k3": "K3", "k3_plus_plus": "K3++", "k4": "K4", "k5": "K5"}
LOG = r"log|report|monitor|plot|read off"
LOSS = r"differentiate|back-propagate|minimize"
REWARD = r"subtract|charge"
# without a place: in the loss
SURE = r"use|take|choose|prefer|pick|train with|start with|switch to|go with|default to|recommend"
VERB = rf"{LOG}|{LOSS}|{REWARD}|{SURE}|put|write|add|keep|replace|want"
# what stands before the verb of a description: "frameworks use", "they put", "the log", "a use of"
SUBJECT = "".join(rf"(?<!\b{word} )" for word in ("the", "a", "an", "its", "that", "who", "they", "which"))
IMPERATIVE = re.compile(rf"(?<![\w\\-]){SUBJECT}(?<!\bin )(?<!\bof )(?<![^s]s )(?P<verb>{VERB})\b(?!-)", re.I)
DENIED = re.compile(r"\b(?:never|not|don't|avoid|nor|no)\s*$", re.I)
NOT_THIS = re.compile(r"\b(?:not|never|nor|instead of|rather than|no|than|replace)\s+(?:the\s+)?$", re.I)
PLACE = re.compile(r"\b(?:in|into|as|from|for|of|to)\s+(?:the|a|your)\s+(?P<place>loss|reward)\b", re.I)
CALLED = re.compile(
    r"\b(?:is|are)\s+(?:the\s+|a\s+)?(?:(?:one|ones|number|term|estimator)\s+to\s+(?P<what>\w+)"
    r"|(?:right|best|better|recommended)\s+(?:choice|number|term|estimator|one)|default\b)",
    re.I,
)
DEFAULT = re.compile(r"\b(?:default|recommended|recommendation|best|safest)(?: \w+)?(?::| is| are)\s+", re.I)
ASIDE = re.compile(
    r"\b(?:which|because|since|whose|where|while|whether|unless|until|has|have|is|are|was|were)\b", re.I
)
_NAME = re.sub(r"\?P<\w+>", "?:", ESTIMATOR.pattern)
_START = (
    r"(?:^|[:;.]\s+|(?<=\bloss),?\s(?:or |and )?|(?<=\breward),?\s(?:or |and )?|\b(?:[Nn]ever|[Nn]ot)\s+)"
)
ALONE = re.compile(
    rf"{_START}(?P<list>{_NAME}(?:(?:, or |, | or | and ){_NAME})*),?"
    rf"(?:\s+is)?\s+(?:in|into|as|for) (?:the|a) (?P<place>loss|reward)(?=\s*(?:[.;,|)]|$| or | and ))"
)
FORMS = re.compile(r"\bheads?\b|\btails?\b|\bsampled rest\b", re.I)  # of a top-k divergence
OLD = re.compile(r"off-policy|\bolder|\bold samples|\bstale", re.I)


class Advice(NamedTuple):
    """One estimator that a sentence tells a reader to take, or to leave."""

    page: str
    sentence: str
    place: str  # "log", "loss", "reward", or "" where the sentence does not say it
    direction: str
    name: str
    ratio: str  # "", "attached", "detached" or "some"
    older: bool
    denied: bool
    verb: str


def pages() -> dict[str, str]:
    """{path: Markdown} of every page that is written by hand, and of README."""
    found = {"README.md": (ROOT / "README.md").read_text(encoding="utf-8")}
    for path in sorted([*BOOK.rglob("*.md"), *BOOK.rglob("*.ipynb")]):
        name = path.relative_to(BOOK).as_posix()
        if not name.startswith(OTHER):
            found[name] = markdown(path)
    return found


def markdown(path: Path) -> str:
    """The Markdown of a page."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return text
    cells = json.loads(text)["cells"]
    return "\n\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")


def sentences(text: str) -> Iterator[tuple[str, bool]]:
    """Sentences of the prose without exercises and proofs, and whether they are in a section on practice."""
    text = "\n".join(outside(text))
    practice = False
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[*-]|\d+\.)\s)|\n(?=#)|\n(?=\|)", text):
        line = " ".join(block.split())
        if line.startswith("#"):
            practice = PRACTICE in line
        for cell in line.strip("| ").split(" | ") if line.startswith("|") else [line]:
            plain = plainly(re.sub(r"^(?:[*-]|\d+\.|#+)\s+", "", cell))
            yield from (
                (s.strip(), practice) for s in re.split(r"(?<=[.!?])\s+(?=[A-Z(])", plain) if s.strip()
            )


def outside(text: str) -> Iterator[str]:
    """Lines that are neither code, exercises or proofs nor options and labels; margins and notes are read."""
    fences: list[tuple[str, bool]] = []  # each fence that is open: its marks, and whether its content is read
    for line in text.splitlines():
        mark = re.match(r"\s*(`{3,}|:{3,})\s*(\S*)", line)
        if mark and fences and mark[1] == fences[-1][0] and not mark[2]:
            fences.pop()
        elif mark:
            fences.append((mark[1], mark[2].startswith(("{margin", "{note", "{tip", "{grid", "{important"))))
        elif all(read for _, read in fences) and not re.match(r"\(.*\)=$|:[\w-]+:", line):
            yield line
            continue
        yield ""


def plainly(text: str) -> str:
    """Text without marks, formulas of estimators as their names."""
    text = re.sub(r"\{(?:ref|doc|cite:t|cite:p|prf:ref)\}`([^`<]*?)\s*(?:<[^>]*>)?`", r"\1", text)
    text = re.sub(r"\\sg\((?:\\bar)?\s*\\rho\)", "sg(rho)", text)
    text = re.sub(r"\\(?:bar)?\\?rho\b", "rho", text).replace("\\,", " ")
    text = re.sub(r"\\lambda\s*=\s*\\tfrac12|λ\s*=\s*½", "lambda = 1/2", text)
    text = re.sub(r"k_\\lambda", "k_lambda", text)
    text = re.sub(r"\bk_([1-5])\b", r"K\1", text)
    text = re.sub(r"`\"?(k[1-5]|k3_plus_plus)\"?`", lambda m: CODE_NAMES[m[1]], text)
    return " ".join(re.sub(r"[*$`\"]", "", text).split())


def canonical(name: str) -> str:
    """One name for one estimator."""
    if re.match(r"exact|fused|linear", name):
        return "exact"
    if name.startswith("top_k"):
        return "top-k"
    return "lambda" if "lambda" in name else name


def advice(page: str, text: str) -> Iterator[Advice]:
    """What the page advises."""
    for sentence, practice in sentences(text):
        if FORMS.search(sentence):
            continue
        yield from imperatives(page, sentence)
        for m in CALLED.finditer(sentence):
            what = (m["what"] or "").lower()
            before = sentence[: m.start()].rpartition(",")[2]
            place = {"log": "log", "report": "log", "differentiate": "loss"}.get(what, "")
            yield from mentioned(page, sentence, m.start() - len(before), before, "call", False, place)
        for m in DEFAULT.finditer(sentence):
            rest = re.split(r"[.;]", sentence[m.end() :])[0]
            if ESTIMATOR.match(rest):
                yield from mentioned(page, sentence, m.end(), rest, "call", False)
        if page in GUIDES or practice:
            yield from alone(page, sentence)


def imperatives(page: str, sentence: str) -> Iterator[Advice]:
    """What follows the verbs of a sentence, each up to the next verb, a colon or the end of its clause."""
    matches = list(IMPERATIVE.finditer(sentence))
    for i, m in enumerate(matches):
        end = matches[i + 1].start() if i + 1 < len(matches) else len(sentence)
        clause = re.sub(r"^\s*(?:is|are|:)\s+", lambda x: " " * len(x[0]), sentence[m.end() : end])
        clause = re.split(r"[:;.](?=\s|$)", clause)[0]
        denied = bool(DENIED.search(sentence[: m.start("verb")]))
        yield from mentioned(page, sentence, m.end(), clause, m["verb"].lower(), denied)


def alone(page: str, sentence: str) -> Iterator[Advice]:
    """A term and its place without a verb: "K2 in the loss", "K1 for the reward"."""
    for m in ALONE.finditer(sentence):
        rest = re.split(r"[.;:]", sentence[m.end() :])[0]
        if not re.search(r"\b(?:is|are|has|have|had|follows?|descends?|leaves?|makes?)\b", rest):
            denied = bool(re.search(r"\b(?:never|not)\s+$", sentence[: m.start("list")], re.I))
            yield from mentioned(
                page, sentence, m.start("list"), m["list"], "alone", denied, m["place"].lower()
            )


def mentioned(
    page: str, sentence: str, start: int, clause: str, verb: str, denied: bool, place: str = ""
) -> Iterator[Advice]:
    """The estimators of a clause, each with the place that the sentence gives it."""
    aside = ASIDE.search(clause)
    said = clause[: aside.start()] if aside else clause
    for m in ESTIMATOR.finditer(said):
        after = PLACE.search(said, m.end())
        earlier = list(PLACE.finditer(sentence[: start + m.start()]))
        at = place or (after["place"] if after else earlier[-1]["place"] if earlier else "").lower()
        if re.fullmatch(LOG, verb):
            at = "log"
        elif not at and re.fullmatch(LOSS, verb):
            at = "loss"
        elif not at and re.fullmatch(REWARD, verb):
            at = "reward"
        near = re.match(r"[^.;:]{0,40}\((?:the )?(forward|reverse)", sentence[start + m.end() :])
        words = re.findall(r"forward|reverse", sentence[: start + m.end()], re.I)
        words = [near[1]] if near else words
        ratio = {"sg(rho)": "detached", "rho": "attached"}.get((m["ratio"] or "").strip(), "")
        ratio = ratio or weighted(sentence)
        negative = denied or bool(
            NOT_THIS.search(said[: m.start()]) or (verb == "replace" and not said[: m.start()].strip())
        )
        yield Advice(
            page,
            sentence,
            at,
            words[-1].lower() if words else "reverse",
            canonical(m["name"]),
            ratio,
            bool(OLD.search(sentence)),
            negative,
            verb,
        )


def weighted(sentence: str) -> str:
    """How the ratio enters where it is not written beside the term; "some" if the sentence does not say."""
    if re.search(r"without (?:its|the|a|any) ratio", sentence):
        return ""
    if re.search(r"ratio[^.;]*\b(?:in the graph|attached)|attached ratio", sentence):
        return "attached"
    return "some" if re.search(r"\bratios?\b|\brho\b", sentence) else ""


def allowed() -> dict[tuple[str, str, str], set[str]]:
    """{(place, direction, name): ratios} of the table: what is recommended, and what is as right."""
    found: dict[tuple[str, str, str], set[str]] = {}
    for entry in (*LOGGED, *TRAINED):
        exact = [Term("", "", arguments=f'"{entry.with_logits}"')] * bool(entry.with_logits)
        for term in (entry, *entry.alternatives, *exact):
            for key in keys(entry, term):
                found.setdefault(key, set()).add(ratio_of(term.arguments))
    return found


def keys(entry: Recommendation, term: Recommendation | Term) -> list[tuple[str, str, str]]:
    """(place, direction, name) of a term of the table; none where the package has no estimator for it."""
    if not term.arguments:
        return []
    estimator = re.match(r'"([^"]+)"', term.arguments)
    assert estimator
    name = estimator[1]
    direction = "forward" if "forward" in entry.objective else "reverse"
    short = canonical(CODE_NAMES.get(name, "Kf++" if name.startswith("kf") else name))
    place = "reward" if "credit" in term.arguments else entry.place  # the value as a cost, whatever is called
    return [(place, direction, short)]


def ratio_of(arguments: str) -> str:
    """How the ratio to the sampler enters a term: "", "detached" or "attached"."""
    if "importance" not in arguments:
        return ""
    return "attached" if "attached" in arguments else "detached"


ALLOWED = allowed()
FIRST = {key for entry in (*LOGGED, *TRAINED) for key in keys(entry, entry)}


def fault(item: Advice) -> str:
    """What the table has against the advice; empty where it is the table's own."""
    place = item.place or ("loss" if re.fullmatch(rf"{SURE}|call", item.verb) else "")
    if not place:
        return ""
    if (item.verb, place) in {("differentiate", "reward"), ("subtract", "loss")} and not item.denied:
        return f"a term in the {place} is not to {item.verb}"
    key = (place, item.direction, item.name)
    if item.denied:
        return f"{key} is recommended" if key in FIRST else ""
    ratios = ALLOWED.get(key)
    if ratios is None:
        return f"{key} is not recommended"
    if place == "reward" or item.name == "exact" or item.ratio == "some":
        return ""
    if not item.ratio:
        return f"{key} is recommended with a ratio only" if item.older or "" not in ratios else ""
    if place != "log" and item.ratio not in ratios:
        return f"{key} with the ratio {item.ratio}"
    return ""


def faults(page: str, text: str) -> list[str]:
    """A line for each piece of advice that is not the table's."""
    return [f"{page}: {why}: {item.sentence}" for item in advice(page, text) if (why := fault(item))]
