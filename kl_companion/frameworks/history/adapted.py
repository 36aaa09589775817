"""Projects that are followed by their adapters, from the release that an adapter was written for on.

The losses are the defaults of the adapter in `kl_companion.frameworks`. Its functions are loaded out of a
newer release, and are called as those of the known one: options and coefficients are not read again. What
they minimize is computed; a name that has moved or a parameter that has changed is noticed.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from kl_companion.frameworks.history.subjects import FollowedLoss, Project
from kl_companion.frameworks.installed import Distribution, in_place_of_installed, line_of
from kl_companion.frameworks.records import Setting
from kl_companion.frameworks.registry import framework, settings
from kl_companion.frameworks.shipped import Shipped
from kl_companion.rollout import Rollout

# what a loss is named for where that is not the reverse KL
_PROMISES = {
    "axolotl.kd_forward_top_2": "forward_kl",
    "ms_swift.gkd_jensen_shannon": "jensen_shannon",
    "tunix.logit_strategy": "forward_kl",
}


def project_of(name: str) -> Project:
    """Return the project of an adapter: the defaults that the distribution's own functions compute."""
    adapter = framework(name)
    followed = tuple(
        FollowedLoss(
            s.name, f"the default {s.default}", partial(_ship, s), _PROMISES.get(s.name, "reverse_kl")
        )
        for s in settings(name)
        if s.default and s.installed
    )
    return Project(name, adapter.distribution, adapter.versions[0], followed)


def _ship(setting: Setting, release: Distribution, options: Mapping[str, Any]) -> Shipped:
    if options:
        raise ValueError(
            f"{setting.name} got the options {', '.join(options)}, expected none: it is one setting"
        )
    line_of(release, setting.place)  # a release without the function has no such loss

    def loss(rollout: Rollout) -> torch.Tensor:
        with in_place_of_installed(release):
            return setting.loss(rollout)

    return Shipped(loss, setting.option, None, setting.place, setting.sampled)
