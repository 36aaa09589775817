"""All cases, by theme, in the order in which the back matter shows them."""

from kl_companion.book.refusals import (
    at_scale,
    commanding,
    deriving,
    enumerating,
    estimating,
    losing,
    modeling,
    projects,
)
from kl_companion.book.refusals.case import Case

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
CASES: tuple[Case, ...] = tuple(case for cases in GROUPS.values() for case in cases)
