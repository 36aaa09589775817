"""The settings that the explorer offers, with what each shows.

A sentence is written here and nowhere else: the page shows it, the notebook and the tests ask whether it
holds. It has to hold on a neighborhood of its setting, so that nobody takes a coincidence for a rule.
"""

from __future__ import annotations

from typing import Any

from kl_book.explorer.sentences import (
    Preset,
    Sentence,
    degrees_to_reverse,
    deviation,
    ends_at,
    favorite,
    length,
    loses_two,
    no_reward,
    of_forward,
    of_reverse,
    same,
    unbiased,
)

PLAIN: dict[str, Any] = {
    "world": "arms",
    "p": [0.5, 0.2, -1.0],
    "q": [0.0, 0.3, 1.0],
    "m": [-0.3, 0.8, -0.6],
    "r": [1.0, 0.0, 0.5],
    "gp": [0.0, 1.0],
    "gq": [0.5, 1.3],
    "gm": [0.3, 1.2],
    "est": "k3",
    "place": "loss",
    "off": False,
    "ratio": "none",
    "k": 1,
    "form": "bregman",
    "beta": 0.5,
}
_IN_REWARD = {**PLAIN, "place": "reward", "q": [0.6, 0.1, -0.5], "r": [0.0, 0.0, 0.0]}
_NO_REWARD = "All rewards are equal, so only the KL term acts."
_K1_RETURNS = Sentence(
    "Choose K1: its gradient is that of the reverse KL, and training ends at the reference.",
    lambda x: of_reverse(x) and same(x.end, x.reference, 1e-5),
    {"est": "k1"},
)

PRESETS = {
    "k3_loss": Preset(
        "K3 in the loss",
        PLAIN,
        (
            Sentence(
                "K3 estimates the reverse KL without bias. In the loss, its gradient is that of the forward "
                "KL, and training ends at the optimum under the forward KL.",
                lambda x: unbiased(x) and of_forward(x) and ends_at(x, x.forward_optimum, x.reverse_optimum),
            ),
            Sentence(
                "Choose K2: its value is biased, but its gradient is that of the reverse KL, and training "
                "ends at the optimum under the reverse KL.",
                lambda x: (
                    abs(x.bias) > 0.005 and of_reverse(x) and ends_at(x, x.reverse_optimum, x.forward_optimum)
                ),
                {"est": "k2"},
            ),
        ),
    ),
    "k1_loss": Preset(
        "K1 in the loss",
        {**PLAIN, "est": "k1"},
        (
            Sentence(
                "K1 estimates the reverse KL without bias. In the loss, its expected gradient is zero, so "
                "training behaves as if there were no KL term: more than 99% of the probability ends on "
                "arm 1, which has the highest reward.",
                lambda x: (
                    unbiased(x)
                    and float(x.gradient.norm()) < 1e-12
                    and favorite(x) == 0
                    and float(x.end[0]) > 0.99
                ),
            ),
            Sentence(
                "Place it in the reward: its gradient is that of the reverse KL, and training ends at the "
                "optimum under the reverse KL.",
                lambda x: of_reverse(x) and ends_at(x, x.reverse_optimum, x.forward_optimum),
                {"place": "reward"},
            ),
        ),
    ),
    "k3_reward_near": Preset(
        "K3 in the reward, near",
        {**_IN_REWARD, "p": [0.9, 0.2, -0.9]},
        (
            Sentence(
                f"{_NO_REWARD} The policy starts near the reference, at a reverse KL below 0.1. The gradient "
                "of K3 in the reward is less than half as long as that of the reverse KL, and it points the "
                "wrong way: a small step of gradient descent raises the reverse KL. Training drives two of "
                "the three arms to probability zero.",
                lambda x: (
                    no_reward(x)
                    and x.reverse_kl < 0.1
                    and length(x) < 0.5
                    and degrees_to_reverse(x) > 90
                    and loses_two(x)
                ),
            ),
            _K1_RETURNS,
        ),
    ),
    "k3_reward_far": Preset(
        "K3 in the reward, far",
        {**_IN_REWARD, "p": [2.0, -1.0, -2.5]},
        (
            Sentence(
                f"{_NO_REWARD} The policy starts far from the reference, at a reverse KL above 0.3. The "
                "gradient of K3 in the reward is now longer than that of the reverse KL, and it points the "
                "wrong way: a small step of gradient descent raises the reverse KL. Training drives two of "
                "the three arms to probability zero.",
                lambda x: (
                    no_reward(x)
                    and x.reverse_kl > 0.3
                    and length(x) > 1
                    and degrees_to_reverse(x) > 90
                    and loses_two(x)
                ),
            ),
            _K1_RETURNS,
        ),
    ),
    "given_up": Preset(
        "A token that became rare",
        {**PLAIN, "p": [1.0, 0.6, -7.0], "q": [0.5, 0.3, -0.1]},
        (
            Sentence(
                "The reference gives arm 3 more than 10% of its probability, the policy less than 0.1%. K3 "
                "is unbiased, but the standard deviation of one sample is more than 40 times its mean.",
                lambda x: (
                    float(x.reference[2]) > 0.1
                    and float(x.policy[2]) < 0.001
                    and unbiased(x)
                    and deviation(x) > 40
                ),
            ),
            Sentence(
                "Choose K1: it has the same mean, and the standard deviation of one sample is smaller than "
                "that mean.",
                lambda x: unbiased(x) and deviation(x) < 1,
                {"est": "k1"},
            ),
        ),
    ),
    "stale": Preset(
        "Old samples without a ratio",
        {**PLAIN, "est": "k2", "off": True},
        (
            Sentence(
                "The samples come from another policy μ, for example an older copy, and no ratio corrects "
                "for it. The gradient of K2 in the loss is more than 10° away from that of the reverse KL.",
                lambda x: degrees_to_reverse(x) > 10,
            ),
            Sentence(
                "Choose the detached ratio: the gradient is that of the reverse KL.",
                of_reverse,
                {"ratio": "detached"},
            ),
            Sentence(
                "Choose the attached ratio: the gradient is again more than 10° away from that of the "
                "reverse KL.",
                lambda x: degrees_to_reverse(x) > 10,
                {"ratio": "attached"},
            ),
            Sentence(
                "Choose K3 and the attached ratio: the gradient is that of the reverse KL.",
                of_reverse,
                {"est": "k3", "ratio": "attached"},
            ),
            Sentence(
                "Choose K3 and the detached ratio: the gradient is that of the forward KL.",
                of_forward,
                {"est": "k3", "ratio": "detached"},
            ),
        ),
    ),
    "top_k": Preset(
        "Top-k as published",
        {
            **PLAIN,
            "est": "top_k_reverse_kl",
            "form": "published",
            "p": [2.0, 0.2, -1.0],
            "r": [1.5, 0.0, 0.3],
        },
        (
            Sentence(
                "Arm 1 is summed exactly (the top-k part), the other two are sampled. The value is unbiased "
                "for the reverse KL, but the gradient has an extra part that moves probability out of the "
                "top-k part: gradient descent lowers the logit of arm 1 more than 20% faster than it would "
                "with the gradient of the reverse KL.",
                lambda x: (
                    int(x.policy.argmax()) == 0
                    and unbiased(x)
                    and float(x.gradient[0]) > 1.2 * float(x.reverse_gradient[0]) > 0
                ),
            ),
            Sentence(
                "Choose the form of this book: the gradient is that of the reverse KL.",
                lambda x: unbiased(x) and of_reverse(x),
                {"form": "bregman"},
            ),
        ),
    ),
    "gauss": Preset(
        "Two Gaussians",
        {**PLAIN, "world": "gauss", "gq": [0.5, 1.8]},
        (
            Sentence(
                "K3 estimates the reverse KL without bias, but the variance of one sample is infinite.",
                lambda x: unbiased(x) and x.variance == float("inf"),
            ),
            Sentence(
                "Choose K1: the variance is finite.",
                lambda x: unbiased(x) and x.variance < float("inf"),
                {"est": "k1"},
            ),
        ),
    ),
}
