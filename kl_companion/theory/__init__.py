"""Derivations: an estimator's value, the weight in its gradient, and the divergence with that gradient."""

from typing import TYPE_CHECKING

from kl_companion.lazy import lazy

if TYPE_CHECKING:
    from kl_companion.theory.calculus import gradient_weight as gradient_weight
    from kl_companion.theory.calculus import implied_f as implied_f
    from kl_companion.theory.calculus import match_divergence as match_divergence
    from kl_companion.theory.calculus import same_weight as same_weight
    from kl_companion.theory.calculus import trace as trace
    from kl_companion.theory.calculus import value as value
    from kl_companion.theory.calculus import value_is_unbiased as value_is_unbiased
    from kl_companion.theory.calculus import vanishes as vanishes
    from kl_companion.theory.group_optima import success_at_rest as success_at_rest
    from kl_companion.theory.optima import multiplier_range as multiplier_range
    from kl_companion.theory.optima import optimal_policy as optimal_policy
    from kl_companion.theory.optima import policy_at as policy_at
    from kl_companion.theory.top_k_optima import mass_penalty_optimum as mass_penalty_optimum
    from kl_companion.theory.top_k_optima import top_k_mass_optimum as top_k_mass_optimum
    from kl_companion.theory.top_k_split import split as split
    from kl_companion.theory.top_k_split import split_of as split_of
    from kl_companion.theory.transforms import reward_transform as reward_transform
    from kl_companion.theory.transforms import transform_shape as transform_shape
    from kl_companion.theory.transforms import transformed_rewards as transformed_rewards

__getattr__, __all__, __dir__ = lazy(__name__)
