"""Worlds small enough to enumerate: exact expectations, exact moments, batched samples, learning."""

from typing import TYPE_CHECKING

from kl_companion.lazy import lazy

if TYPE_CHECKING:
    from kl_companion.tabular.anchors import AnchoredPath as AnchoredPath
    from kl_companion.tabular.anchors import follow_anchor as follow_anchor
    from kl_companion.tabular.draws import Draws as Draws
    from kl_companion.tabular.draws import Moments as Moments
    from kl_companion.tabular.expectations import Expectation as Expectation
    from kl_companion.tabular.expectations import Loss as Loss
    from kl_companion.tabular.expectations import descend as descend
    from kl_companion.tabular.expectations import expectation as expectation
    from kl_companion.tabular.expectations import expected_gradient as expected_gradient
    from kl_companion.tabular.expectations import expected_value as expected_value
    from kl_companion.tabular.fisher import fisher_bound as fisher_bound
    from kl_companion.tabular.fisher import fisher_matrix as fisher_matrix
    from kl_companion.tabular.fisher import pulled_back as pulled_back
    from kl_companion.tabular.fisher import pulled_back_spectrum as pulled_back_spectrum
    from kl_companion.tabular.fisher import stiffest as stiffest
    from kl_companion.tabular.fisher import visits as visits
    from kl_companion.tabular.learning import Learning as Learning
    from kl_companion.tabular.learning import learn as learn
    from kl_companion.tabular.logits import LogitMoments as LogitMoments
    from kl_companion.tabular.logits import logit_moments as logit_moments
    from kl_companion.tabular.moments import draw_statistics as draw_statistics
    from kl_companion.tabular.moments import exact_covariance as exact_covariance
    from kl_companion.tabular.moments import exact_field as exact_field
    from kl_companion.tabular.moments import exact_moments as exact_moments
    from kl_companion.tabular.networks import Network as Network
    from kl_companion.tabular.networks import tiny_transformer as tiny_transformer
    from kl_companion.tabular.sampling import Estimates as Estimates
    from kl_companion.tabular.sampling import simulate as simulate
    from kl_companion.tabular.tokens import token_moments as token_moments
    from kl_companion.tabular.tokens import token_statistics as token_statistics
    from kl_companion.tabular.worlds import MAX_EVALUATIONS as MAX_EVALUATIONS
    from kl_companion.tabular.worlds import Problem as Problem
    from kl_companion.tabular.worlds import bandit as bandit
    from kl_companion.tabular.worlds import prefix_tree as prefix_tree
    from kl_companion.tabular.worlds import stack as stack
    from kl_companion.tabular.worlds import truncate as truncate

__getattr__, __all__, __dir__ = lazy(__name__)
