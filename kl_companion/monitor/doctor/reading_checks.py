"""What is read: what a token is scored after, which tokens count, and their log-probs' temperature."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kl_companion.monitor.doctor.findings import DoctorFinding
from kl_companion.monitor.doctor.lines import mask_line, policy_line, reduction_line
from kl_companion.monitor.doctor.probing import Probe
from kl_companion.monitor.doctor.readings import NOTHING, words
from kl_companion.monitor.doctor.tracing import POLICY, Line


def contexts(probe: Probe) -> Iterator[DoctorFinding]:
    """What every scored position saw: its own prompt and the tokens before it, and nothing else."""
    for forward in probe.trace.forwards:
        packed = [s for s in forward.strays if s.startswith("another answer")]
        padded = [s for s in forward.strays if "padding" in s]
        other = [s for s in forward.strays if s not in packed + padded]
        if packed or (other and "another" in " ".join(other)):
            yield DoctorFinding(
                "context",
                "wrong",
                "Answers that are packed into one row attend to each other: the second answer of a row is "
                "scored as a continuation of the first.",
                forward.line,
                "give position_ids that begin again with every answer and no 2-D mask (or cu_seqlens), so "
                "that attention is block-diagonal",
                "packed",
            )
            return
        if padded:
            yield DoctorFinding(
                "context",
                "wrong",
                f"The {forward.model} attends to padding on the left of the prompt.",
                forward.line,
                "pass attention_mask to the model",
                "padding",
            )
            return
        if other and (probe.plain.stray + probe.rewarded.stray) > NOTHING:
            yield DoctorFinding(
                "context", "wrong", f"The {forward.model} scored {words(other)}.", forward.line
            )
            return
    yield DoctorFinding(
        "context", "fine", "Every token is scored after its own prompt and the tokens before it."
    )


def tokens(probe: Probe) -> Iterator[DoctorFinding]:
    """Which predictions have a gradient: those of the completion's tokens, end-of-sequence included."""
    rollout = probe.world().rollout
    inside = rollout.completion_mask.bool()
    acts = (probe.plain.completion.abs().amax(-1) > NOTHING) | (
        probe.rewarded.completion.abs().amax(-1) > NOTHING
    )
    prompt = probe.plain.prompt + probe.rewarded.prompt > NOTHING
    beyond = probe.plain.beyond + probe.rewarded.beyond > NOTHING
    lengths = inside.sum(-1)
    last = torch.zeros_like(inside).scatter(1, (lengths - 1).unsqueeze(-1), True)
    ended = (rollout.tokens.gather(1, (lengths - 1).unsqueeze(-1)) == 0).expand_as(last)
    missing = inside & ~acts
    where = reduction_line(probe)
    if not acts.any():
        return
    first_missing, last_missing = missing[:, 0].all(), missing[last].all()
    eos_missing = missing[last & ended].all() and not missing[last & ~ended].any()
    at_mask = mask_line(probe) or where
    if first_missing and beyond:
        yield _token(
            "The mask is shifted by one: the first token of every answer is left out and the prediction "
            "after its end counts.",
            at_mask,
            "shift mask and log-probs together: logits[:, :-1] go with input_ids[:, 1:] and mask[:, 1:]",
            "shifted-mask",
        )
    elif last_missing and prompt:
        yield _token(
            "The mask is shifted by one: the last token of every answer is left out and the last token of "
            "the prompt counts.",
            at_mask,
            "shift mask and log-probs together: logits[:, :-1] go with input_ids[:, 1:] and mask[:, 1:]",
            "shifted-mask",
        )
    elif beyond:
        also = ", and prompt tokens too" if prompt else ""
        yield _token(
            f"The completion mask is missing: predictions after the end of an answer count{also}.",
            where,
            "multiply by the completion mask before the sum, and divide by its sum",
            "no-mask",
        )
    elif prompt:
        yield _token(
            "Prompt tokens are in the loss: the policy did not choose them, and their KL is no part of any "
            "objective.",
            at_mask,
            "use the mask of the completion, and not the attention mask",
            "prompt",
        )
    elif eos_missing:
        yield _token(
            "The end-of-sequence token is left out: nothing holds the length of answers to the reference's.",
            at_mask,
            "let the mask include the first end-of-sequence token; where padding has the same id, take the "
            "mask from lengths and not from ids",
            "no-eos",
        )
    elif missing.any():
        share = missing.sum().item() / inside.sum().item()
        first = "the first of every answer" if first_missing else "the last of every answer"
        which = f" ({first})" if first_missing or last_missing else ""
        yield _token(
            f"{share:.0%} of the completion's tokens{which} have no gradient.", at_mask, "", "shifted-mask"
        )
    else:
        count = int(inside.sum())
        yield DoctorFinding(
            "tokens",
            "fine",
            f"All {count} tokens of the answers count, end-of-sequence included, and no other.",
        )


def _token(said: str, line: Line | None, instead: str, fault: str) -> DoctorFinding:
    return DoctorFinding("tokens", "wrong", said, line, instead, fault)


def scores(probe: Probe) -> Iterator[DoctorFinding]:
    """Whose log-probs are differentiated, and at which temperature."""
    rows = {at: r for at, r in probe.reward_term.items() if r is not None and r.token >= 0}
    rows = rows or {at: r for at, r in probe.rows(probe.plain).items() if r is not None and r.token >= 0}
    if not rows:
        return
    sampled = probe.world().rollout.tokens
    wrong = [at for at, r in rows.items() if r.token != int(sampled[at])]
    line = probe.trace.first([POLICY], ("gather", "cross_entropy", "take_along_dim", "nll_loss"))
    line = line or policy_line(probe)
    if wrong:
        yield DoctorFinding(
            "scores",
            "wrong",
            f"{len(wrong)} of {len(rows)} log-probs are those of another token than the one that was "
            "sampled: logits and labels are not aligned.",
            line,
            "logits[:, t] predict input_ids[:, t + 1]: take logits[:, :-1] and input_ids[:, 1:]",
            "shifted-tokens",
        )
        return
    declared, found = probe.subject.declared, probe.temperature
    name = declared.names.get("temperature", "the sampler's temperature")
    if abs(found - declared.temperature) > 1e-3 * declared.temperature:
        yield DoctorFinding(
            "temperature",
            "wrong",
            f"The sampler's temperature is {declared.temperature:g} ({name}), and log-probs are computed at "
            f"{found:.3g}: samples are not from the policy that is differentiated.",
            policy_line(probe),
            f"divide the logits by {declared.temperature:g} before log_softmax, of policy and reference",
            "temperature",
        )
    else:
        yield DoctorFinding(
            "temperature",
            "fine",
            f"Log-probs are of the sampled tokens, at the sampler's temperature {found:.3g}.",
        )
