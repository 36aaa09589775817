r"""Rows of the table `claims` as a page or a terminal shows them: typeset formulas, or plain letters.

Formulas of findings and corrections stand between dollar signs. A statement of the register is short LaTeX
without them, and is always shown in letters.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

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
_MATH = re.compile(r"\$([^$]+)\$")


def plain(text: str) -> str:
    r"""Simple LaTeX in letters, with or without dollar signs: ``\pi_ref`` becomes π_ref."""
    text = _MATH.sub(lambda m: m[1], text).replace(r"\pref", r"\pi_ref").replace(r"\|", "‖")
    text = re.sub(r"\\[,;:! ]", " ", text)
    text = re.sub(r"\\(?:left|right|[bB]igl?|[bB]igr?)(?![a-zA-Z])", "", text)
    for _ in range(2):  # groups inside groups
        text = re.sub(rf"\\KL{GROUP}{GROUP}", r"KL(\1 ‖ \2)", text)
        text = re.sub(rf"\\D{GROUP}{GROUP}{GROUP}", r"D_\1(\2 ‖ \3)", text)
        text = re.sub(rf"\\(?:mathrm|mathbb|mathcal|text|operatorname){GROUP}", r"\1", text)
        text = re.sub(rf"\\[td]?frac{GROUP}{GROUP}", fraction, text)
    text = re.sub(r"\\[td]?frac\{?(\w)\}?\{?(\w)\}?", r"\1/\2", text)
    text = re.sub(r"\\hat(?:\{(\w+)\}| (\w+))", lambda m: f"(estimate of {m[1] or m[2]})", text)
    text = re.sub(r"\\([a-zA-Z]+)", lambda m: LETTERS.get(m[1], m[0]), text)
    text = re.sub(r"√\{([^{}]*)\}", r"√(\1)", text)
    text = re.sub(r"√ (?=\w)", "√", text)
    text = re.sub(r"\^\{([^{}]*)\}", r"^(\1)", text)
    text = re.sub(r"_\{([^{}]*[-+≥>][^{}]*)\}", r"_(\1)", text)  # δ_(t+k), not δ_t+k
    return re.sub(r"_\{([^{}]*)\}", r"_\1", text)


def fraction(found: re.Match[str]) -> str:
    """A ratio on one line, with brackets around what is more than a letter."""
    above, below = (part if re.fullmatch(r"\\?\w+", part) else f"({part})" for part in found.groups())
    return f"{above}/{below}"


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
