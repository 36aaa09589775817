"""How many examples a property is tried on: a few in `make test`, many in `make reliability`."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings

VARIABLE = "KL_COMPANION_EXAMPLES"
EXAMPLES = settings(
    max_examples=int(os.environ.get(VARIABLE, "10")),
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
