"""Section 9 beside the tables, the references, and the displays as a whole (wang2025choosing)."""

from __future__ import annotations

from kl_companion.claims.ledger import Evidence, claim
from kl_companion.claims.wang2025choosing import centering, gradients, rewards, values, variances
from kl_companion.claims.worlds import worst

LISTED = ("Yifan Zhang", "Yiping Ji", "Gavin Brown")
AUTHORS = ("Yifan Zhang", "Yifeng Liu", "Huizhuo Yuan", "Yang Yuan", "Quanquan Gu", "Andrew Chi-Chih Yao")
DISPLAYS = (
    values.ratio_of_value_one_keeps_the_score,
    values.gradients_of_both_divergences,
    values.log_ratio_is_unbiased_and_of_both_signs,
    values.half_square_agrees_to_second_order,
    values.one_expansion_around_the_reference,
    values.reduced_value_is_a_bregman_gap,
    gradients.gradients_of_single_estimates,
    gradients.expectation_and_derivative_do_not_commute,
    gradients.a_fixed_sampler_lets_them_commute,
    gradients.sample_rho_k1,
    gradients.sample_rho_k2,
    gradients.sample_detached_k2,
    gradients.sample_rho_k3,
    variances.difference_of_variances,
    rewards.condition_on_a_detached_estimate,
    rewards.log_ratio_in_the_reward,
    rewards.half_square_in_the_reward,
    rewards.reduced_value_in_the_reward,
    rewards.one_ratio_is_enough,
    centering.loss_and_reward_are_one_vector,
    centering.no_centering_is_unbiased,
    centering.the_batch_mean_takes_away_one_nth,
)


@claim("WZ-refs")
def authors_of_the_listed_paper() -> Evidence:
    """Names in the list of references that are not among the authors at arXiv:2505.17508."""
    strangers = [name for name in LISTED if name not in AUTHORS]
    return Evidence(
        float(len(strangers)),
        correction=", ".join(AUTHORS),
        counterexample=f"not among the {len(AUTHORS)} authors: {', '.join(strangers)}",
    )


SHAH_LISTED = 8
SHAH = (
    *("Vedant Shah", "Johan Obando-Ceron", "Vineet Jain", "Brian Bartoldson", "Bhavya Kailkhura"),
    *("Sarthak Mittal", "Glen Berseth", "Pablo Samuel Castro", "Yoshua Bengio", "Nikolay Malkin"),
    *("Moksh Jain", "Siddarth Venkatraman", "Aaron Courville"),
)


@claim("WZ-refs-shah")
def authors_of_the_other_listed_paper() -> Evidence:
    """The list of references ends after eight of the authors, without saying that there are more."""
    return Evidence(
        float(len(SHAH) - SHAH_LISTED),
        correction=", ".join(SHAH),
        counterexample=f"left out: {', '.join(SHAH[SHAH_LISTED:])}",
    )


@claim("WZ-equations-lost")
def displays_follow_from_the_sentences() -> Evidence:
    """Each display that the sentences announce, derived again, and enumerated."""
    return Evidence(
        worst(check().printed for check in DISPLAYS),
        condition=f"{len(DISPLAYS)} displays, derived from the sentences around them; each has its own row",
    )
