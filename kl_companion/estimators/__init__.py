"""Estimators of a divergence between policy and reference: formulas only."""

from typing import TYPE_CHECKING

from kl_companion.lazy import lazy

if TYPE_CHECKING:
    from kl_companion.estimators.record import Estimator as Estimator
    from kl_companion.estimators.registry import ESTIMATORS as ESTIMATORS
    from kl_companion.estimators.registry import get_estimator as get_estimator
    from kl_companion.estimators.registry import register_estimator as register_estimator
    from kl_companion.estimators.sampled import k1 as k1
    from kl_companion.estimators.sampled import k2 as k2
    from kl_companion.estimators.sampled import k3 as k3
    from kl_companion.estimators.sampled import k3_plus_plus as k3_plus_plus
    from kl_companion.estimators.sampled import k4 as k4
    from kl_companion.estimators.sampled import k5 as k5
    from kl_companion.estimators.sampled import k_lambda as k_lambda
    from kl_companion.estimators.sampled import kf_plus_plus as kf_plus_plus
    from kl_companion.estimators.top_k import TopK as TopK
    from kl_companion.estimators.top_k import top_k_f_divergence as top_k_f_divergence
    from kl_companion.estimators.top_k import top_k_forward_kl as top_k_forward_kl
    from kl_companion.estimators.top_k import top_k_reverse_kl as top_k_reverse_kl
    from kl_companion.estimators.top_k import truncated_f_divergence as truncated_f_divergence
    from kl_companion.estimators.top_k import truncated_kl as truncated_kl
    from kl_companion.estimators.vocabulary import exact_forward_kl as exact_forward_kl
    from kl_companion.estimators.vocabulary import exact_kl as exact_kl
    from kl_companion.estimators.vocabulary import f_divergence as f_divergence

__getattr__, __all__, __dir__ = lazy(__name__)
