"""Which tests are asked about which module: the ones written for it first, the ones that use it afterwards.

What is left out: tests that make mutants of their own or start other processes (they read the files on disk),
and the pages, claims and language models, which are made of these modules and would notice too, in minutes.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

# group -> module -> the tests that are written for it, the sharpest first
GROUPS: dict[str, dict[str, tuple[str, ...]]] = {
    "ops": {"ops": ("test_ops", "estimators/test_sampled")},
    "divergences": {"divergences": ("test_divergences",)},
    "sampled": {"estimators.sampled": ("estimators/test_sampled", "estimators/test_forms")},
    "vocabulary": {"estimators.vocabulary": ("estimators/test_vocabulary",)},
    "rollout": {
        "rollout.aggregation": ("test_aggregation",),
        "rollout.batch": ("test_rollout", "test_heads_in_losses"),
        "rollout.centering": ("rollout/test_centering",),
        "rollout.importance": ("rollout/test_importance",),
    },
    "calculus": {"theory.calculus": ("theory/test_calculus",)},
    "tabular": {
        "tabular.anchors": ("tabular/test_anchors",),
        "tabular.draws": ("tabular/test_draws", "tabular/test_moments"),
        "tabular.expectations": ("tabular/test_expectations",),
        "tabular.fisher": ("tabular/test_fisher",),
        "tabular.groups": ("tabular/test_groups",),
        "tabular.learning": ("test_learning",),
        "tabular.logits": ("tabular/test_logit_moments",),
        "tabular.moments": ("tabular/test_moments", "tabular/test_draws"),
        "tabular.networks": ("tabular/test_anchors", "tabular/test_fisher"),
        "tabular.rows": ("tabular/test_tokens", "tabular/test_logit_moments"),
        "tabular.sampling": ("tabular/test_simulate",),
        "tabular.scores": ("tabular/test_moments", "tabular/test_simulate"),
        "tabular.tokens": ("tabular/test_tokens",),
        "tabular.worlds": ("tabular/test_worlds",),
    },
    "losses": {"losses": ("test_losses", "test_heads_in_losses")},
    "auditing": {
        "auditing.adapt": ("auditing/test_adapt", "auditing/test_audit"),
        "auditing.audit": ("auditing/test_audit", "auditing/test_adapt"),
        "auditing.objectives": ("auditing/test_objectives",),
        "auditing.recognize": ("auditing/test_audit", "auditing/test_audit_of_heads"),
        "auditing.remedy": ("auditing/test_audit",),
        "auditing.report": ("auditing/test_report", "auditing/test_audit"),
        "auditing.solve": ("auditing/test_solve", "auditing/test_audit"),
        "auditing.verdict": ("auditing/test_report", "auditing/test_audit", "auditing/test_adapt"),
    },
}

# group -> the tests that a mutant meets which none of those noticed
FURTHER: dict[str, tuple[str, ...]] = {
    "ops": ("theory/test_calculus",),
    "divergences": (
        "estimators/test_sampled",
        "estimators/test_vocabulary",
        "theory/test_slopes",
        "estimators/test_forms",
        "test_registry",
    ),
    "sampled": ("estimators/test_registry_of_estimators", "numerics/test_samples", "numerics/test_refusals"),
    "vocabulary": ("numerics/test_distributions", "numerics/test_refusals", "estimators/test_top_k"),
    "rollout": ("test_losses", "test_heads_in_losses", "numerics/test_refusals", "test_off_policy"),
    "calculus": ("test_registry",),
    "tabular": (
        "tabular/test_expectations",
        "tabular/test_draws",
        "tabular/test_baselines",
        "tabular/test_tokens",
        "numerics/test_refusals",
    ),
    "losses": ("numerics/test_refusals", "test_reward_placement", "test_off_policy"),
    "auditing": ("auditing/test_audit_of_heads", "auditing/test_audit_of_ratios", "test_cli"),
}
HINTS = Path(__file__).with_name("noticed.json")


def modules(group: str) -> tuple[str, ...]:
    """The modules of a group, by their dotted names."""
    return tuple(f"kl_companion.{name}" for name in GROUPS[group])


def stages(group: str, module: str) -> list[list[str]]:
    """Test files for a module of the group, one after the other."""
    first = GROUPS[group][module.removeprefix("kl_companion.")]
    return [[f"tests/{name}.py"] for name in dict.fromkeys((*first, *FURTHER[group]))]


@cache
def hints() -> dict[str, str]:
    """The test that noticed a mutant of the quick form when `remember` was last called, by `Mutant.digest`.

    It is tried before the others and saves their time; where it is wrong, they follow.
    """
    return dict(json.loads(HINTS.read_text(encoding="utf-8")))


def remember(noticed: dict[str, str]) -> None:
    """Write the hints."""
    HINTS.write_text(json.dumps(dict(sorted(noticed.items())), indent=1) + "\n", encoding="utf-8")
