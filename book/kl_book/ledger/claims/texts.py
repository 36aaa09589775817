r"""Rows of the table `claims` as a page or a terminal shows them: typeset formulas, or plain letters.

Formulas of findings and corrections stand between dollar signs. A statement of the register is short LaTeX
without them, and is always shown in letters.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING
from unicodedata import normalize

if TYPE_CHECKING:
    import pandas as pd

Found = dict[str, str]
"""A row of the table `claims`; what is missing is empty."""

_SIGNS = """
alpha=α beta=β gamma=γ delta=δ epsilon=ε varepsilon=ε eta=η theta=θ lambda=λ mu=μ nu=ν pi=π rho=ρ sigma=σ
tau=τ phi=φ chi=χ psi=ψ omega=ω ell=ℓ Delta=Δ Lambda=Λ Phi=Φ Psi=Ψ Sigma=Σ Omega=Ω nabla=∇ partial=∂ sum=∑
prod=∏ int=∫ sqrt=√ propto=∝ cdot=· times=× infty=∞ pm=± le=≤ leq=≤ ge=≥ geq=≥ ne=≠ neq=≠ approx=≈ to=→
dots=… ldots=… top=⊤ sim=∼ in=∈ notin=∉ mid=| lvert=| rvert=| Vert=‖ lVert=‖ E=E Var=Var sg=sg log=log
exp=exp arcsin=arcsin kappa=κ max=max min=min succ=≻
"""
LETTERS = dict(pair.split("=") for pair in _SIGNS.split())
GROUP = r"\{((?:[^{}]|\{[^{}]*\})*)\}"
_INNER = r"\{([^{}]*)\}"
_FRACTION = re.compile(rf"\\[td]?frac ?(?:{_INNER}|(\w)) ?(?:{_INNER}|(\w))")
_SYMBOL = re.compile(r"\|?(?:\d+|[A-Za-z]+|[^\W\d_])(?:_\w+)?\|?")
_FONT = r"\\(?:mathrm|mathbb|mathcal|text|operatorname)"
_WORDS = ("log", "exp", "max", "min", "arcsin")
_GAP = "\x00"  # a space, where a letter would touch another one
_MATH = re.compile(r"\$([^$]+)\$")


def plain(text: str) -> str:
    r"""Simple LaTeX in letters, with or without dollar signs: ``\pi_ref`` becomes π_ref."""
    text = _MATH.sub(lambda m: m[1], text).replace(r"\pref", r"\pi_ref").replace(r"\|", "‖")
    text = re.sub(r"\\[,;:! ]", " ", text)
    text = re.sub(r"\\(?:left|right|[bB]igl?|[bB]igr?)(?![a-zA-Z])", "", text)
    text = re.sub(r"(?<![a-zA-Z\\])(log|exp|max|min)(?=\\[a-zA-Z])", rf"\1{_GAP}", text)
    text = re.sub(r"([_^]\\[a-zA-Z]+)(?=\\[a-zA-Z])", rf"\1{_GAP}", text)
    text = re.sub(r"\\([a-zA-Z]+)", _letter, text)
    text = re.sub(r"\\hat(?:\{(\w+)\}| ?(\w))", _hat, text)
    text = re.sub(rf"([_^]){_FONT}\{{", r"\1{", text)
    before = ""
    while before != text:  # from the inside out
        before, text = text, _without_inner_groups(text)
    text = re.sub(r"√ (?=\w)", "√", text)
    text = re.sub(r"(_[a-z])(?=[A-Z])", r"\1 ", text)  # ∑_j R_j
    text = re.sub(r"(?<!\w)((?:∑|[^\W\d_])_[a-z])(?=[a-z]_)", r"\1 ", text)  # c_i d_i, and not kl_in_reward
    text = re.sub(r"\((\(estimate of \w+\))\)", r"\1", text)
    return re.sub(rf"(?<=[\w)\]∇∑|'])(?<!\s){_GAP}+(?=\w)", " ", text).replace(_GAP, "")


def _letter(found: re.Match[str]) -> str:
    letter = LETTERS.get(found[1], found[0])
    return f"{_GAP}{letter}{_GAP}" if letter in _WORDS else letter


def _hat(found: re.Match[str]) -> str:
    name = found[1] or found[2]
    return (
        normalize("NFC", f"{name}\N{COMBINING CIRCUMFLEX ACCENT}")
        if len(name) == 1
        else f"(estimate of {name})"
    )


def _without_inner_groups(text: str) -> str:
    text = re.sub(rf"\\KL{_INNER}{_INNER}", r"KL(\1 ‖ \2)", text)
    text = re.sub(rf"\\D{_INNER}{_INNER}{_INNER}", r"D_\1(\2 ‖ \3)", text)
    text = re.sub(rf"{_FONT}{_INNER}", r"\1", text)
    text = _FRACTION.sub(fraction, text)
    text = re.sub(rf"√{_INNER}", r"√(\1)", text)
    text = re.sub(rf"\^{_INNER}", r"^(\1)", text)
    text = re.sub(r"_\{([^{}]*[-+≥>∼=][^{}]*)\}", r"_(\1)", text)  # δ_(t+k), not δ_t+k
    return re.sub(rf"_{_INNER}", rf"_\1{_GAP}", text)


def fraction(found: re.Match[str]) -> str:
    """A ratio on one line, with brackets around what is more than a symbol, and around a factor."""
    above, below = ((found[i] if found[i] is not None else found[i + 1]).strip(f" {_GAP}") for i in (1, 3))
    above, below = (part if _SYMBOL.fullmatch(part) else f"({part})" for part in (above, below))
    before, after = found.string[: found.start()], found.string[found.end() :]
    factor = re.match(r" ?[\w(\[√∑∇∫|^\\]", after.lstrip(_GAP)) or re.search(
        r"[\w)\]] ?$", before.rstrip(_GAP)
    )
    return f"({above}/{below})" if factor else f"{above}/{below}"


def letters(text: str) -> str:
    """A finding in letters, Greek names outside formulas too: rho >= 1 becomes ρ ≥ 1."""
    text = re.sub(
        r"(?<![a-zA-Z])(pi|rho|mu|alpha|beta|lambda|theta|eta|chi|delta|sqrt)(?![a-zA-Z])",
        lambda m: LETTERS[m[1]],
        plain(text),
    )
    return text.replace(">=", "≥").replace("<=", "≤")


def typeset(text: str) -> str:
    r"""HTML of a finding: what stands between dollar signs is left to MathJax, the rest is in letters.

    The element around it needs the class ``mathjax_process``.
    """
    parts = _MATH.split(text)
    return "".join(rf"\({escape(part)}\)" if i % 2 else escape(letters(part)) for i, part in enumerate(parts))


def rows_as_texts(claims: pd.DataFrame, columns: Sequence[str]) -> list[Found]:
    """Some columns of the table `claims`, or of rows of it.

    Raises:
        ValueError: a column is missing.
    """
    missing = [name for name in columns if name not in claims.columns]
    if missing:
        raise ValueError(f"claims has no column {missing[0]!r}, expected {', '.join(columns)}")
    chosen = claims[list(columns)].astype(object)
    return chosen.where(chosen.notna(), "").to_dict("records")
