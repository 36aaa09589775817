"""Worlds small enough to enumerate: exact expectations, exact moments, batched samples, learning."""

from kl_companion.tabular.anchors import AnchoredPath, follow_anchor
from kl_companion.tabular.draws import Draws, Moments
from kl_companion.tabular.expectations import (
    Expectation,
    Loss,
    descend,
    expectation,
    expected_gradient,
    expected_value,
)
from kl_companion.tabular.fisher import (
    fisher_bound,
    fisher_matrix,
    pulled_back,
    pulled_back_spectrum,
    stiffest,
    visits,
)
from kl_companion.tabular.learning import Learning, learn
from kl_companion.tabular.logits import LogitMoments, logit_moments
from kl_companion.tabular.moments import (
    draw_statistics,
    exact_covariance,
    exact_field,
    exact_moments,
)
from kl_companion.tabular.networks import Network, tiny_transformer
from kl_companion.tabular.sampling import Estimates, simulate
from kl_companion.tabular.tokens import token_moments, token_statistics
from kl_companion.tabular.worlds import MAX_EVALUATIONS, Problem, bandit, prefix_tree, stack, truncate

__all__ = [
    "MAX_EVALUATIONS",
    "AnchoredPath",
    "Draws",
    "Estimates",
    "Expectation",
    "Learning",
    "LogitMoments",
    "Loss",
    "Moments",
    "Network",
    "Problem",
    "bandit",
    "descend",
    "draw_statistics",
    "exact_covariance",
    "exact_field",
    "exact_moments",
    "expectation",
    "expected_gradient",
    "expected_value",
    "fisher_bound",
    "fisher_matrix",
    "follow_anchor",
    "learn",
    "logit_moments",
    "prefix_tree",
    "pulled_back",
    "pulled_back_spectrum",
    "simulate",
    "stack",
    "stiffest",
    "tiny_transformer",
    "token_moments",
    "token_statistics",
    "truncate",
    "visits",
]
