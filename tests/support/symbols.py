r"""Which symbols a chapter uses before a reader has met them: `read_symbols`.

A symbol is a letter or a Greek letter with its accent and without its indices: $\hat Z_i$ is \hat Z, and
$\pi$, $\pi^*$ and $\Delta\pi$ are three. A sentence introduces

* the left side of an equation or of a distribution, $Z = ...$, $y \sim \pi$, unless the right is a number;
* a symbol that follows "let", "write", "call" and the like;
* a symbol with a noun before it ("the step size $\eta$") or an explanation after it ("$\eta$ is the ...",
  "$n$, the ...", "$n$ samples").

So does the first column of a table, and one that is headed "symbol". Sums, limits, expectations over
$y \sim \pi$ and "for every $y$" bind their letter for one sentence; i, j, t and u are met with the first
symbol that carries them as an index. Within a sentence the introduction may come after the use. So the rules
find what nobody explained, not what is explained badly.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tests.support.prose import CODE, Passage

GREEK = (
    "alpha|beta|gamma|delta|epsilon|varepsilon|zeta|eta|theta|kappa|lambda|mu|nu|xi|pi|rho|sigma|tau|phi|varphi"
    "|chi|psi|omega|Gamma|Delta|Theta|Lambda|Xi|Sigma|Phi|Psi|Omega|ell|pref"
)
ACCENT = "(?:wide)?(?:hat|tilde)|Delta|bar|vec|mathcal|mathbf|mathbb|boldsymbol"
LETTER = rf"(?:\\(?:{GREEK})(?![a-zA-Z])|[a-zA-Z])"
SYMBOL = rf"(?:\\(?:{ACCENT})\s*(?:\{{\s*{LETTER}\s*\}}|{LETTER})|{LETTER})(?:\s*\^\*)?"
PARTS = rf"(?:\\({ACCENT})\s*)?\{{?\s*({LETTER})\s*\}}?(\s*\^\*)?"
GROUP = r"\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\}"
ARGUMENT = rf"\s*(?:{GROUP}|\\[a-zA-Z]+(?:\s*{GROUP})?|[^\s{{}}])"
WORDS = rf"\\(?:text|mathrm|operatorname|textbf|mathtt|begin|end|label|tag)\*?(?:\s*{GROUP}|\s+[a-z]\b)"
STAR = r"\^\s*(?:\{\s*(?:\*|\\star)\s*\}|\*|\\star)"
INDEX = rf"_{ARGUMENT}|'|\^\s*(?:\\(?:top|circ|prime|dagger|infty)|\{{\s*\(?[\w+-]*\)\s*\}}|[+-])"
RELATED = "sim|equiv|propto|in|ge|geq|le|leq|ne|neq|to"
COMMAND = rf"\\(?!(?:{GREEK}|{ACCENT}|{RELATED})(?![a-zA-Z]))(?:[a-zA-Z]+|[,;:!>])"
STANDARD = {"e", "O", r"\mathcal N", r"\mathbb R", r"\mathbb E"}  # orders, normal distribution, reals, mean

BINDER = rf"\\(?:sum|prod|int|max|min|sup|inf|lim)_({ARGUMENT})"
SAMPLED = rf"_\{{\s*({SYMBOL}(?:\s*,\s*{SYMBOL})*)\s*\\sim"
RELATION = r":=|=|\\equiv|\\sim|\\propto"
NUMBER = r"[-+\d.,/\s{}]|\\[td]?frac|\\infty|\\log|\\sqrt"

FORMULA = r"⟦\d+⟧"  # its place in a sentence
LIST = rf"{FORMULA}(?:(?:, and |, or |, | and | or ){FORMULA})*"
COUNTABLE = (
    "samples|draws|tokens|completions|sequences|answers|rollouts|runs|steps|updates|gradients|arms|nats"
)
LET = r"\b(?:let|write|call|denote|define|put|set|suppose|take|consider|choose|pick|fix|draw|name|assume)\b"
BEFORE = rf"([A-Za-z][\w'-]*\w)[ -]\(?({LIST})"
ARTICLE = "(?:the|a|an|its|their|what|how|whatever)"
AFTER = (
    rf"({LIST})(?:,? \(?(?:(?:is|are|be)(?: called| minus| half| again)? )?{ARTICLE}\b"
    rf"| (?:counts?|denotes?|stands? for|means|names|runs over|for {ARTICLE})\b"
    rf"| (?:[\w-]+ )?(?:{COUNTABLE})\b)"
)
EVERY = rf"\b(?:every|each|all|any|some|given|fixed|over) ({LIST})"
NO_NOUN = re.compile(  # words before a symbol that do not say what it is
    "an|the|of|by|and|or|nor|is|are|be|was|were|to|in|on|at|as|with|for|than|from|that|this|which|where|when|if|then|so"
    "|not|no|but|times|over|under|both|only|also|its|their|has|have|had|into|onto|between|against|per|plus|minus|about"
    "|above|below|near|towards?|until|through|via|while|since|because|after|before|equals|exceeds|means|gives|becomes"
    "|needs|holds|adds|says|reaches|exactly|again|it|they|every|each|all|any|some|given|fixed|say|depends|does"
    "|once|without|own|small|large|leaves?|costs|pays|moves|follows|solves|satisfies|descends|minimizes",
    re.I,
)


class Unmet(NamedTuple):
    """A symbol, and the sentence that uses it first."""

    symbol: str
    sentence: str


def clean(tex: str) -> str:
    """A formula's letters: without indices, words, differentials and commands."""
    tex = re.sub(INDEX, "", re.sub(STAR, "^*", re.sub(WORDS, " ", tex)))
    tex = re.sub(COMMAND, " ", tex).replace("&", " ")
    accented = rf"\\(?:{ACCENT})\s*(?:{GROUP}|\d)"
    tex = re.sub(accented, lambda m: m[0] if re.fullmatch(SYMBOL, m[0]) else " ", tex)  # not of a word
    return re.sub(r"\bd(?=[a-z]\b)", " ", tex)


def spelled(symbol: str) -> str:
    r"""One spelling for `\hat Z`, `\hat{Z}` and `\widehat Z`."""
    accent, letter, star = re.fullmatch(PARTS, symbol).groups()  # type: ignore[union-attr]
    return (f"\\{accent.removeprefix('wide')} " if accent else "") + letter + ("^*" if star else "")


def letters(tex: str) -> list[str]:
    found = re.findall(SYMBOL, re.sub(rf"\\(?:{RELATED})(?![a-zA-Z])", " ", clean(tex)))
    return [s for s in map(spelled, found) if s not in STANDARD]


def bound(tex: str) -> set[str]:
    """What the sums and expectations of a formula run over."""
    runs = [*re.findall(BINDER, tex), *re.findall(SAMPLED, tex), *re.findall(r"\bd([a-z])\b", tex)]
    return {s for run in runs for s in letters(run.strip(" {}"))}


def indices(tex: str) -> set[str]:
    """The letters that count positions and samples, once a symbol has carried them."""
    return {i for index in re.findall(rf"_{ARGUMENT}", tex) for i in index if i in "ijtu"}


def heads(tex: str, by_words: bool) -> Iterator[str]:
    """What a formula introduces: the left sides of its equations and, by words, a symbol that is alone."""
    for part in re.split(r"\\\\|\\q?quad|;|,(?![^()\[\]]*[)\]])", tex):
        found = re.match(
            rf"\s*({SYMBOL})\s*(?:\^\s*\{{?2\}}?)?\s*(\([^()=]*\)|\[[^][=]*\])?\s*(?:({RELATION})(.*)|(.*))",
            clean(part).strip(" ."),
            re.S,
        )
        symbol, arguments, relation, right, rest = found.groups() if found else ("", "", "", "", "")
        stands = relation and re.sub(NUMBER, "", right)
        alone = symbol and (relation or not rest or re.match(rf"\\(?:{RELATED})(?![a-zA-Z])|[<>]", rest))
        if stands or (by_words and alone):
            yield spelled(symbol)
            yield from letters(arguments or "") if relation else ()
        elif by_words and (right_side := re.search(rf"=\s*({SYMBOL})\s*$", clean(part))):
            yield spelled(right_side[1])


def introduced(sentence: str, formulas: list[str]) -> set[str]:
    """What a sentence, with ⟦i⟧ in the place of its formulas, introduces."""
    spoken = re.split(LET, sentence, flags=re.I)[1:]
    spoken += [m[2] for m in re.finditer(BEFORE, sentence) if not NO_NOUN.fullmatch(m[1])]
    spoken += [m[1] for m in re.finditer(AFTER, sentence)]
    by_words = {i for text in spoken for i in places(text)}
    return {s for i in places(sentence) for s in heads(formulas[i], i in by_words)}


def places(text: str) -> list[int]:
    return [int(i) for i in re.findall(r"⟦(\d+)⟧", text)]


def sentences(read: Iterable[Passage]) -> Iterator[tuple[str, list[str], bool]]:
    """Each sentence, its formulas, and whether it is the symbol's place in a table."""
    text, formulas = "", list[str]()

    def place(formula: str) -> str:
        formulas.append(formula)
        return f"⟦{len(formulas) - 1}⟧" + "." * formula.rstrip().endswith(".")

    for passage in [*read, Passage("heading", "", {})]:
        if passage.kind == "formula":
            text += " " + place(passage.text)
            continue
        goes_on = passage.kind == "text" and (passage.text[:1].islower() or text.rstrip(",").endswith("⟧"))
        if not goes_on:
            for sentence in re.split(r"(?<=[.?!])[)\"]?\s+(?=[A-Z⟦(\"])", text):
                yield sentence, formulas, False
            text, formulas = "", []
        if passage.kind in ("text", "cell", "symbol"):
            pieces = re.split(r"\$([^$]+)\$", re.sub(CODE, "code", passage.text))
            text += " " + "".join(place(p) if k % 2 else p.replace("*", "") for k, p in enumerate(pieces))
            text = re.sub(r"\s+", " ", text).strip()
        if passage.kind == "symbol":
            yield text, formulas, True
            text, formulas = "", []


def read_symbols(read: Iterable[Passage], known: set[str]) -> tuple[list[Unmet], set[str]]:
    """The symbols that are used before they are introduced, each once, and all that this text introduces."""
    here, carried, missing = set[str](), set[str](), list[Unmet]()
    for sentence, formulas, column in sentences(read):
        used = [formulas[i] for i in places(sentence)]
        here |= introduced(sentence, formulas) | {s for tex in used for s in heads(tex, column)}
        carried |= {i for tex in used for i in indices(tex)}
        named = {i for m in re.finditer(EVERY, sentence) for i in places(m[1])}
        local = {s for tex in used for s in bound(tex)} | {s for i in named for s in heads(formulas[i], True)}
        for symbol in (s for tex in used for s in letters(tex)):
            if symbol not in known | here | carried | local | {m.symbol for m in missing}:
                shown = re.sub(r"⟦(\d+)⟧", lambda m: f"${formulas[int(m[1])].strip()}$", sentence)  # noqa: B023
                missing.append(Unmet(symbol, " ".join(shown.split())))
    return missing, here
