"""What the doctor says: a finding, with the line that it is about and what to write there."""

from __future__ import annotations

from typing import Literal, NamedTuple

from kl_companion.monitor.doctor.tracing import Line

Level = Literal["wrong", "attention", "fine"]


class DoctorFinding(NamedTuple):
    """One thing that was looked at.

    Attributes:
        name: What it is about, one word or two: "mask", "reference".
        level: ``"wrong"``: the step does not do what it says; ``"attention"``: it does, and that is not what
            one would expect; ``"fine"``.
        said: What was found, with its size.
        line: The line to mend; None where there is none, or where nothing is to be mended.
        instead: What to write there.
        fault: Which known mistake it is: a key of `FAULTS`; "" for none.
    """

    name: str
    level: Level
    said: str
    line: Line | None = None
    instead: str = ""
    fault: str = ""


FAULTS = {
    "exchanged": "policy and reference are exchanged",
    "no-mask": "the completion mask is missing",
    "shifted-mask": "the completion mask is shifted by one",
    "shifted-tokens": "log-probs are those of the neighboring token",
    "prompt": "prompt tokens are in the loss",
    "no-eos": "the end-of-sequence token is left out",
    "denominator": "the denominator is wrong under gradient accumulation",
    "merged-reference": "the reference of a LoRA model is the merged one",
    "policy-reference": "the reference is the policy, and follows it",
    "scored-differently": "policy and reference are not scored alike",
    "reference-gradient": "the reference is trained",
    "no-reference": "nothing reads the reference",
    "temperature": "the sampler's temperature is not applied",
    "truncated-sampler": "a truncated sampler without a correction",
    "recomputed-old": "the old log-probs are recomputed by the updated policy",
    "stale": "stale samples without a ratio",
    "packed": "packed answers attend to each other",
    "padding": "padding is attended to",
    "kl-times-advantage": "the KL is multiplied by advantages",
    "clipped": "the value or the log-ratio is clipped",
    "detached": "the KL has no gradient",
    "wrong-sign": "the KL is subtracted from the loss",
    "rewards-minimized": "the log-probs of better answers fall",
    "rewards-idle": "the rewards have no effect",
    "k1-in-loss": "K1 in the loss, whose expected gradient is 0",
}
