"""What a log does not decide, and which number or file would."""

from __future__ import annotations

from collections.abc import Iterator

from kl_companion.monitor.logs.beta import beta_of
from kl_companion.monitor.logs.quantities import FEWEST, Quantities
from kl_companion.monitor.logs.words import finite


def open_questions(q: Quantities) -> Iterator[str]:
    """Yield one sentence per open question, with what would decide it."""
    kl = q.reference
    numbers = kl is not None and any(finite(kl.series))
    if (
        kl is not None
        and numbers
        and len({(m.average, m.estimator) for m in kl.metrics}) > 1
        and not q.release.chosen
    ):
        yield f"Which release it is: {kl.key} is another number in another one (--release decides)."
    if kl is not None and numbers:
        if beta_of(q).value is None:
            yield "What the KL costs: β is in the launch script or the configuration of the run (--beta)."
        if q.keys.get("sigma") is None and kl.place == "loss":
            yield "What the KL costs beside the reward: the standard deviation of the rewards to one prompt."
        if kl.estimator == "K3":
            yield (
                "Whether the KL is many tokens or a few: K1 of the same tokens beside K3 (K3 - K1 is "
                "mean(reference/policy) - 1), or the largest |log-ratio| of a row."
            )
        if not kl.metrics:
            yield f"What {kl.key} is: the line of the code that logs it."
        if "length" not in q.keys:
            yield "The KL of an answer: the mean length of the answers beside it."
    if numbers and q.answers is None and not q.series("tokens"):
        yield "The noise of a row: how many answers it averages (--answers)."
    if numbers and (kl is not None and (kl.place == "loss" or not kl.metrics)):
        yield (
            "Whether the term reaches the gradient, with which sign: `kl-companion audit` on the loss, or "
            "`kl-companion doctor` on the training step."
        )
    if kl is not None and not numbers and not q.options.beta:
        yield "Whether a KL was wanted: β in the launch script or the configuration of the run."
    if 1 < len(q.log.steps) < FEWEST or len(q.log.steps) == 1:
        yield f"Any trend: at least {FEWEST} rows (this log has {len(q.log.steps)})."
