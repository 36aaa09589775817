"""What the package says to bad input: a catalogue of cases, every message made by running one.

>>> from kl_companion.refusals import CASES, run
>>> run(CASES[0]).exception
'ValueError'
"""

from kl_companion.refusals import (
    at_scale,
    commanding,
    deriving,
    enumerating,
    estimating,
    losing,
    modeling,
    projects,
)
from kl_companion.refusals.case import Case, Exit, Refusal, parts, run, unclear

GROUPS: dict[str, tuple[Case, ...]] = {
    "Estimators and divergences": estimating.CASES,
    "Raw logits and hidden states": at_scale.CASES,
    "Rollouts and losses": losing.CASES,
    "Derivations, optima and anchors": deriving.CASES,
    "Enumerated worlds and audits": enumerating.CASES,
    "The command line": commanding.CASES,
    "Result tables and notebooks": projects.CASES,
    "Language models": modeling.CASES,
}
"""The cases by theme, in the order in which the back matter shows them."""
CASES: tuple[Case, ...] = tuple(case for cases in GROUPS.values() for case in cases)

__all__ = ["CASES", "GROUPS", "Case", "Exit", "Refusal", "parts", "run", "unclear"]
