"""The settings that the explorer offers, as states of ``klExplore``; the page's sentences are about these."""

from __future__ import annotations

from typing import Any

PLAIN: dict[str, Any] = {
    "world": "arms",
    "p": [0.5, 0.2, -1.0],
    "q": [0.0, 0.3, 1.0],
    "m": [0.8, -0.4, -0.2],
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

PRESETS: dict[str, tuple[str, dict[str, Any]]] = {
    "k3_loss": ("K3 in the loss", PLAIN),
    "k1_loss": ("K1 in the loss does nothing", {**PLAIN, "est": "k1"}),
    "k3_reward_near": (
        "K3 in the reward, near",
        {**PLAIN, "place": "reward", "p": [0.6, 0.0, 0.0], "q": [0.0, 0.6, 0.6], "r": [0.0, 0.0, 0.0]},
    ),
    "k3_reward_far": (
        "K3 in the reward, far",
        {**PLAIN, "place": "reward", "p": [2.5, 0.0, -3.0], "q": [0.0, 0.6, 0.6], "r": [0.0, 0.0, 0.0]},
    ),
    "given_up": ("A token the policy gave up", {**PLAIN, "p": [1.0, 0.5, -7.0], "q": [0.5, 0.5, 0.0]}),
    "stale": ("Stale sampler without ratio", {**PLAIN, "est": "k2", "off": True}),
    "top_k": (
        "Top-k as published",
        {
            **PLAIN,
            "est": "top_k_reverse_kl",
            "form": "published",
            "p": [2.0, 0.2, -1.0],
            "r": [1.5, 0.0, 0.0],
        },
    ),
    "gauss": ("Two Gaussians", {**PLAIN, "world": "gauss", "gq": [0.5, 1.5]}),
}
