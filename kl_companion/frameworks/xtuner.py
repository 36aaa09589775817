"""XTuner: `kl_penalty` in the loss of GRPO; a formula of the repository, whose releases are older."""

from __future__ import annotations

from functools import partial

from kl_companion.auditing.updates.recipe import Recipe
from kl_companion.frameworks.algorithms import Algorithm
from kl_companion.frameworks.formulas import as_verl, in_loss
from kl_companion.frameworks.installed import SourceLocation
from kl_companion.frameworks.records import Framework, Remedy

_PLACE = SourceLocation("xtuner/v1/rl/loss/loss_fn.py", "kl_penalty")
_ALGORITHMS = (
    Algorithm(
        "GRPO",
        Recipe("group_std", eps=1e-8),
        SourceLocation("xtuner/v1/rl/advantage/grpo.py", "GRPOEstimator.compute"),
        instead="advantage_estimator_config=RLOOAdvantageConfig()",
    ),
    Algorithm(
        "RLOO",
        Recipe("leave_one_out"),
        SourceLocation("xtuner/v1/rl/advantage/rloo.py", "RLOOEstimator.compute"),
        when="advantage_estimator_config=RLOOAdvantageConfig()",
    ),
)
_KINDS = ("low_var_kl", "kl", "mse", "abs")

FRAMEWORK = Framework(
    name="xtuner",
    title="XTuner",
    distribution="",
    versions=("commit b934f4620 (2026-08-21)",),
    settings=tuple(
        in_loss(
            f"xtuner.loss_{kind}",
            f'loss_cfg: use_kl_loss=True, kl_loss_coef=0.001, kl_loss_type="{kind}"',
            partial(as_verl, kind),
            _PLACE,
            default="of the shipped configurations once use_kl_loss is True (the class has no kl_loss_type)"
            if kind == "low_var_kl"
            else "",
            note="k3 is another name." if kind == "low_var_kl" else "",
            algorithms=_ALGORITHMS,
            beta=0.0 if kind == "low_var_kl" else None,
        )
        for kind in _KINDS
    ),
    remedy=Remedy(
        sequence=None,
        token="xtuner.loss_mse",
        words="There is no KL in the reward; mse has the token-level gradient on-policy only.",
    ),
)
