"""What a recommendation is: what to log, or what to put into the loss or the reward, in one situation.

The records are in recommendations.toml. Nothing there is believed: ``tests/recommendations`` runs every line
of code, and the audit has to find the objective that stands beside it.
"""

from __future__ import annotations

import ast
from typing import Any, NamedTuple

# the lines that follow those which compute ``kl``; a trainer multiplies advantages by the ratio itself
USES = {
    "log": "number = (kl * mask).sum(-1).mean()",
    "loss": "loss = loss + beta * (kl * mask).sum(-1).mean()",
    "reward": "advantages = advantages - beta * kl",
}
VERBS = {"log": "Log", "loss": "Differentiate", "reward": "Subtract"}


class Term(NamedTuple):
    """A term that can be written instead of the recommended one.

    Attributes:
        name: What a sentence calls it.
        objective: What the audit finds; ``"zero"``, and ``"other"`` for the gradient of no known objective.
        lines: Code that computes ``kl`` from logp, ref_logp, behavior_logp (whose samples they are) and
            mask, [batch, seq]; empty where only the package has it.
        arguments: Of `kl_companion.kl_loss` or `kl_companion.kl_reward`; empty where it has no such term.
        use: The lines that follow; None for those of the recommendation that it belongs to.
        note: When it may be taken, or what it costs.
    """

    name: str
    objective: str
    lines: str = ""
    arguments: str = ""
    use: str | None = None
    note: str = ""


class Recommendation(NamedTuple):
    """What to write in one situation, and what not.

    Attributes:
        key: Its name.
        place: ``"log"``, ``"loss"`` (it is differentiated) or ``"reward"`` (it is subtracted).
        want: ``"token"`` and ``"sequence"`` (reverse KL of tokens, of answers), ``"forward"`` (of tokens),
            or ``"more"``, which the guide does not ask for.
        samples: ``"policy"`` or ``"older"``.
        name: What a sentence calls it.
        objective: For ``"log"`` what its value estimates, else the objective whose gradient it has.
        chapter: Label of the chapter that says why.
        lines: Code that computes ``kl``.
        arguments: Of `kl_companion.kl_loss` (whose value is logged) or `kl_companion.kl_reward`.
        use: The lines that follow; None for those of `USES`.
        with_logits: The estimator of whole distributions with the same objective.
        alternatives: Terms that are right as well.
        pitfalls: Terms that look right.
        when: The situation in words, where the other fields do not say it.
        why: The reason for the choice.
    """

    key: str
    place: str
    want: str
    samples: str
    name: str
    objective: str
    chapter: str
    lines: str = ""
    arguments: str = ""
    use: str | None = None
    with_logits: str = ""
    alternatives: tuple[Term, ...] = ()
    pitfalls: tuple[Term, ...] = ()
    when: str = ""
    why: str = ""

    @property
    def code(self) -> str:
        """The lines that a trainer writes: those that compute ``kl``, and its use."""
        return self.code_of(self)

    def code_of(self, term: Term | Recommendation) -> str:
        """The code of one of the terms of this situation; empty where it has none."""
        if not term.lines:
            return ""
        use = term.use if term.use is not None else self.use
        return f"{term.lines}\n{USES[self.place] if use is None else use}"

    @property
    def inline(self) -> str:
        """The last line's right-hand side, and what it is made of, as Markdown in a sentence."""
        *given, last = self.lines.splitlines()
        text = f"`{last.removeprefix('kl = ')}`"
        return text + (f", with {' and '.join(f'`{line}`' for line in given)}" if given else "")


def values_of(arguments: str) -> tuple[list[Any], dict[str, Any]]:
    """Arguments as the table writes them, ``'"k2", importance="token"'``, as values; nothing is executed.

    Raises:
        ValueError: something else than literals.
    """
    call = ast.parse(f"f({arguments})", mode="eval").body
    if not isinstance(call, ast.Call):
        raise ValueError(f"got {arguments!r}, wanted the arguments of one call")
    named = {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}
    return [ast.literal_eval(x) for x in call.args], named
