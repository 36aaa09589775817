"""Worlds that are listed whole, and the policy that samples in each."""

from kl_companion.tabular import bandit, prefix_tree

WORLDS = {
    "bandit": bandit(4, seed=1),
    "bandit_off_policy": bandit(4, seed=2, off_policy=True),
    "tree": prefix_tree(3, 2, seed=3),
    "deep": prefix_tree(2, 4, seed=8, eos=True),
    "eos": prefix_tree(3, 2, seed=4, eos=True),
    "off_policy": prefix_tree(3, 2, seed=5, eos=True, off_policy=True, scale=2.0),
}


def sampler(problem, policy):
    return policy if problem.behavior_logits is None else problem.behavior_logits
