"""Who notices a mutant: the audit, polgrad's assertion, polgrad's formula; and whether there is something."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from types import ModuleType
from typing import Any, NamedTuple

import torch

from kl_book.mutants.losses import FORMULAS, LOSSES
from kl_book.mutants.making import mutants_of
from kl_companion.auditing.auditor import audit
from kl_companion.auditing.fit.findings import Finding
from kl_companion.auditing.judgment.summary import headline, level, row, terms
from kl_companion.frameworks.installed import find, import_from

Loss = Callable[..., torch.Tensor]
Batch = Mapping[str, torch.Tensor]
VERSIONS = ("0.2.1",)
DIGITS = 5
TOLERANCE = 1e-9  # that of polgrad


def judged(name: str, at_most: int = 0) -> list[dict[str, Any]]:
    """One row of the table `mutants_caught` for each mutant of a loss of `LOSSES`.

    Args:
        name: Of the loss.
        at_most: So many mutants, spread over the text of the loss; 0 takes all.
    """
    loss, reference = LOSSES[name], formula(FORMULAS[name])
    plain = verdict(loss)
    all_of = mutants_of(loss)
    chosen = all_of[:: -(-len(all_of) // at_most)] if at_most else all_of
    rows = []
    for mutant in chosen:
        found = verdict(mutant.function)
        rows.append(
            {
                "loss": name,
                "mutant": mutant.number,
                "change": mutant.change,
                "before": mutant.before,
                "after": mutant.after,
                "equivalent": _yes(equivalent(loss, mutant.function)),
                "audit": _yes(found.conditions != plain.conditions),
                "assert_conforms": _yes(not conforms(mutant.function, reference)),
                "formula": _yes(not agrees(mutant.function, reference)),
                "minimizes": found.sentence,
            }
        )
    return rows


def _yes(x: bool) -> str:
    return "yes" if x else "no"


# -- the audit -----------------------------------------------------------------------------------------------


class Said(NamedTuple):
    """What an audit says.

    Attributes:
        conditions: Of each condition headline, level, terms and units, numbers to five digits; empty where
            the loss is refused.
        sentence: What is minimized on fresh samples, in words, or the refusal.
    """

    conditions: tuple[Any, ...]
    sentence: str


def verdict(loss: Loss) -> Said:
    """All that an audit says of a loss in words."""
    try:
        found = audit(loss)
    except ValueError as error:
        return Said((), f"refused: {str(error).splitlines()[0]}")
    return Said(tuple(_said(f) for f in found.findings), row(found.main))


def _said(finding: Finding) -> tuple[Any, ...]:
    found = [
        (t.objective, "varies" if math.isnan(t.coefficient) else f"{t.coefficient:.{DIGITS}g}", t.unit)
        for t in terms(finding)
    ]
    return headline(finding), level(finding), tuple(found), finding.sums, finding.settles


# -- polgrad -------------------------------------------------------------------------------------------------


@cache
def reference_library() -> ModuleType:
    """The module `polgrad.testing`, from the folder of audits; `Unavailable` says how to get it."""
    return import_from(find("polgrad", VERSIONS), "polgrad.testing")


def formula(words: Mapping[str, Any]) -> Any:
    """The `polgrad.PolicyLossConfig` of an entry of `kl_book.mutants.losses.FORMULAS`."""
    reference_library()
    import polgrad as theirs

    kind, beta = words["kl"]
    return theirs.PolicyLossConfig(
        ratio=theirs.RatioKind(words.get("ratio", "token")),
        surrogate=theirs.SurrogateKind(words.get("surrogate", "pg_clip")),
        clip=theirs.ClipConfig(*words["clip"]),
        aggregation=theirs.Aggregation(words["aggregation"]),
        norm_len=words.get("norm_len"),
        kl=theirs.KLLossConfig(theirs.KLEstimator(kind), beta),
    )


def conforms(loss: Loss, reference: Any) -> bool:
    """Whether `polgrad.testing.assert_conforms` passes.

    It passes a loss no log-probs of a reference and leaves the KL term of its own formula out. So the policy
    itself is given as the reference, with its gradient: every estimator of the KL is constantly zero there.
    """

    def without_reference(logprobs: torch.Tensor, **rest: torch.Tensor) -> torch.Tensor:
        return loss(logprobs=logprobs, ref_logprobs=logprobs, **rest)

    try:
        reference_library().assert_conforms(without_reference, reference)
    except Exception:  # the assertion, or whatever a mutant raises
        return False
    return True


def agrees(loss: Loss, reference: Any) -> bool:
    """Whether a loss has value and gradient of polgrad's whole formula, on the batches of its assertion."""
    from polgrad import policy_loss

    def theirs(**batch: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = policy_loss(reference, **batch).loss
        return found

    batches = reference_library().random_batches(64, ((4, 8), (2, 12)), seed=0)
    return all(_alike(loss, theirs, b) for b in batches)


# -- the truth -----------------------------------------------------------------------------------------------


def equivalent(loss: Loss, mutant: Loss) -> bool:
    """Whether two losses have the same value and gradient on every one of many batches.

    Fresh and stale samples, log-ratios from small ones to beyond every clip, padded answers, advantages of
    both signs.
    """
    return all(_alike(loss, mutant, b) for b in _batches())


def _batches() -> Iterator[Batch]:
    draw = partial(torch.rand, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for gap in (0.0, 0.1, 1.0, 5.0, 30.0):
        for shape in ((4, 8), (2, 12), (3, 1)):
            for apart in (0.1, 2.0, 30.0):
                logprobs = -8 * draw(shape)
                lengths = (draw(shape[:1]) * shape[1]).long() + 1
                yield {
                    "logprobs": logprobs,
                    "old_logprobs": logprobs + gap * (2 * draw(shape) - 1),
                    "ref_logprobs": logprobs + apart * (2 * draw(shape) - 1),
                    "advantages": 6 * draw(shape[:1]) - 3,
                    "response_mask": torch.arange(shape[1]) < lengths[:, None],
                }


def _alike(one: Loss, other: Loss, batch: Batch) -> bool:
    try:
        a, b = _value_and_gradient(one, batch), _value_and_gradient(other, batch)
    except (RuntimeError, ValueError, TypeError):  # no loss at all
        return False
    return all(_close(x, y) for x, y in zip(a, b, strict=True))


def _value_and_gradient(loss: Loss, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    names = ("logprobs", "old_logprobs", "ref_logprobs", "advantages", "response_mask")
    given = {name: batch[name] for name in names}
    given["logprobs"] = given["logprobs"].clone().requires_grad_()
    value = loss(**given)
    (gradient,) = torch.autograd.grad(value, given["logprobs"])
    return value.detach(), gradient


def _close(a: torch.Tensor, b: torch.Tensor) -> bool:
    if not (a.isfinite().all() and b.isfinite().all()):
        return torch.equal(a.nan_to_num(1.5), b.nan_to_num(1.5))
    return bool((a - b).norm() <= TOLERANCE * torch.maximum(a.norm(), b.norm()))
