"""What is looked at: each check reads the experiments of a `Probe` and gives findings.

The order is that of a forward pass: what the models saw, which tokens count, at which temperature, against
which reference, in which form, with which samples, over which denominator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from kl_companion.monitor.doctor.findings import Finding
from kl_companion.monitor.doctor.probing import Probe
from kl_companion.monitor.doctor.readings import NOTHING, same, words
from kl_companion.monitor.doctor.tracing import FROZEN, POLICY, REFERENCE, Line

_MODEL = (POLICY, FROZEN, REFERENCE)
_CLAMPS = ("clamp", "clip", "clamp_min", "clamp_max", "minimum", "maximum", "min", "max")
_SCORES = ("log_softmax", "logsumexp", "cross_entropy", "softmax")
Check = Callable[[Probe], Iterator[Finding]]


def contexts(probe: Probe) -> Iterator[Finding]:
    """What every scored position saw: its own prompt and the tokens before it, and nothing else."""
    for forward in _scored(probe):
        packed = [s for s in forward.strays if s.startswith("another answer")]
        padded = [s for s in forward.strays if "padding" in s]
        other = [s for s in forward.strays if s not in packed + padded]
        if packed or (other and "another" in " ".join(other)):
            yield Finding(
                "context",
                "wrong",
                "Answers that are packed into one row attend to each other: the second answer of a row is "
                "scored as a continuation of the first.",
                forward.line,
                "give position_ids that begin again with every answer and no 2-D mask (or cu_seqlens), so that "
                "attention is block-diagonal",
                "packed",
            )
            return
        if padded:
            yield Finding(
                "context",
                "wrong",
                f"The {forward.model} attends to padding on the left of the prompt.",
                forward.line,
                "pass attention_mask to the model",
                "padding",
            )
            return
        if other and (probe.plain.stray + probe.rewarded.stray) > NOTHING:
            yield Finding("context", "wrong", f"The {forward.model} scored {words(other)}.", forward.line)
            return
    yield Finding("context", "fine", "Every token is scored after its own prompt and the tokens before it.")


def tokens(probe: Probe) -> Iterator[Finding]:
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
    where = _reduction(probe)
    if not acts.any():
        return
    first_missing, last_missing = missing[:, 0].all(), missing[last].all()
    eos_missing = missing[last & ended].all() and not missing[last & ~ended].any()
    mask_line = _mask_line(probe) or where
    if first_missing and beyond:
        yield _token(
            "The mask is shifted by one: the first token of every answer is left out and the prediction "
            "after its end counts.",
            mask_line,
            "shift mask and log-probs together: logits[:, :-1] go with input_ids[:, 1:] and mask[:, 1:]",
            "shifted-mask",
        )
    elif last_missing and prompt:
        yield _token(
            "The mask is shifted by one: the last token of every answer is left out and the last token of "
            "the prompt counts.",
            mask_line,
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
            mask_line,
            "use the mask of the completion, and not the attention mask",
            "prompt",
        )
    elif eos_missing:
        yield _token(
            "The end-of-sequence token is left out: nothing holds the length of answers to the reference's.",
            mask_line,
            "let the mask include the first end-of-sequence token; where padding has the same id, take the "
            "mask from lengths and not from ids",
            "no-eos",
        )
    elif missing.any():
        share = missing.sum().item() / inside.sum().item()
        first = "the first of every answer" if first_missing else "the last of every answer"
        which = f" ({first})" if first_missing or last_missing else ""
        yield _token(
            f"{share:.0%} of the completion's tokens{which} have no gradient.", mask_line, "", "shifted-mask"
        )
    else:
        count = int(inside.sum())
        yield Finding(
            "tokens",
            "fine",
            f"All {count} tokens of the answers count, end-of-sequence included, and no other.",
        )


def scores(probe: Probe) -> Iterator[Finding]:
    """Whose log-probs are differentiated, and at which temperature."""
    rows = {at: r for at, r in probe.reward_term.items() if r is not None and r.token >= 0}
    rows = rows or {at: r for at, r in probe.rows(probe.plain).items() if r is not None and r.token >= 0}
    if not rows:
        return
    sampled = probe.world().rollout.tokens
    wrong = [at for at, r in rows.items() if r.token != int(sampled[at])]
    line = probe.trace.first([POLICY], ("gather", "cross_entropy", "take_along_dim", "nll_loss"))
    line = line or _policy_line(probe)
    if wrong:
        yield Finding(
            "scores",
            "wrong",
            f"{len(wrong)} of {len(rows)} log-probs are those of another token than the one that was sampled: "
            "logits and labels are not aligned.",
            line,
            "logits[:, t] predict input_ids[:, t + 1]: take logits[:, :-1] and input_ids[:, 1:]",
            "shifted-tokens",
        )
        return
    declared, found = probe.subject.declared, probe.temperature
    name = declared.names.get("temperature", "the sampler's temperature")
    if abs(found - declared.temperature) > 1e-3 * declared.temperature:
        yield Finding(
            "temperature",
            "wrong",
            f"The sampler's temperature is {declared.temperature:g} ({name}), and log-probs are computed at "
            f"{found:.3g}: samples are not from the policy that is differentiated.",
            _policy_line(probe),
            f"divide the logits by {declared.temperature:g} before log_softmax, of policy and reference",
            "temperature",
        )
    else:
        yield Finding(
            "temperature",
            "fine",
            f"Log-probs are of the sampled tokens, at the sampler's temperature {found:.3g}.",
        )


def reference(probe: Probe) -> Iterator[Finding]:
    """Which model the KL is measured to."""
    declared, trace = probe.subject.declared, probe.trace
    if probe.plain.reference > NOTHING and not probe.reads_reference:
        yield Finding(
            "reference",
            "wrong",
            "Policy and reference are exchanged: the KL has a gradient by the reference's parameters and none "
            "by the policy's.",
            trace.meeting((FROZEN, POLICY), REFERENCE),
            "compute the reference's log-probs under torch.no_grad(), and the policy's with a gradient",
            "exchanged",
        )
        return
    if probe.plain.reference > NOTHING:
        yield Finding(
            "reference",
            "attention",
            "The loss has a gradient by the reference's parameters: unless they are frozen, they are trained.",
            _call(probe, REFERENCE),
            "compute the reference's log-probs under torch.no_grad()",
            "reference-gradient",
        )
    if probe.reads_reference:
        if probe.form is not None and probe.form.exchanged:
            return  # said by the form
        yield Finding("reference", "fine", "The KL is measured to the reference, which carries no gradient.")
        return
    if abs(probe.plain.loss - probe.elsewhere.loss) > NOTHING:
        yield Finding(
            "reference",
            "wrong",
            "The KL is in the loss and has no gradient: it is a constant for the optimizer.",
            trace.last([POLICY], ("detach",)) or _call(probe, POLICY),
            "take the policy's log-probs with their gradient: no detach(), no no_grad()",
            "detached",
        )
        return
    acts = probe.plain.completion.abs().max() > NOTHING
    frozen = [f for f in trace.forwards if f.model == "policy" and not f.gradient and not f.base]
    both = [f for f in trace.forwards if f.model == "policy" and not f.base]
    if trace.merged is not None:
        yield Finding(
            "reference",
            "wrong",
            "The reference is the merged model: adapters were put into the weights, so that without them it "
            "still is the policy, and the KL is 0.",
            trace.merged,
            "take the reference from the unmerged model: with model.disable_adapter(): ...",
            "merged-reference",
        )
    elif frozen or (len(both) > 1 and declared.beta != 0):
        yield Finding(
            "reference",
            "wrong",
            f"The reference is the policy itself: {declared.names.get('same', '')}it follows every update, the KL "
            "is 0 and has no effect.",
            (frozen or both)[-1].call,
            "keep a frozen copy: ref_model = copy.deepcopy(model).eval().requires_grad_(False) before training",
            "policy-reference",
        )
    elif any(f.model == "reference" for f in trace.forwards):
        yield Finding(
            "reference",
            "wrong",
            "The reference is scored, and then nothing reads it, or it has become a copy of the policy.",
            _call(probe, REFERENCE),
            "update the reference's weights nowhere, and subtract its log-probs",
            "policy-reference",
        )
    elif acts:
        yield Finding(
            "reference", "attention", "Something acts with equal rewards, and it does not read the reference."
        )
    else:
        zero = " (beta is 0)" if declared.beta == 0 else ""
        yield Finding(
            "reference",
            "attention",
            f"There is no KL term: nothing reads the reference{zero}.",
            None,
            declared.names.get("beta", ""),
            "" if declared.beta == 0 else "no-reference",
        )


def alike(probe: Probe) -> Iterator[Finding]:
    """Whether policy and reference are scored in the same way: where they are equal there is no KL."""
    known = probe.form
    if probe.placement not in ("loss", "whole") or (known is not None and known.name == "k1"):
        return  # the gradient of K1 is the score, also where its value is 0
    off = probe.alike.completion.abs().max().item()
    if off > 1e-6 * probe.plain.completion.abs().max().item():
        yield Finding(
            "alike",
            "wrong",
            "With a reference that is equal to the policy the KL term still has a gradient: the two are not "
            "scored alike (temperature, alignment or mask differ).",
            _call(probe, REFERENCE) or probe.trace.meeting(POLICY, REFERENCE),
            "score policy and reference by one function",
            "scored-differently",
        )


def form(probe: Probe) -> Iterator[Finding]:
    """What the KL of one token is as a function of the log-ratio, and whether anything multiplies it."""
    if not probe.placement or probe.subject.declared.teacher:
        return
    near, rewarded = probe.near, probe.near_rewarded
    meeting = probe.trace.meeting(POLICY, REFERENCE) or probe.trace.meeting((POLICY, FROZEN), REFERENCE)
    plain = (near.own - near.own[0])[1:]
    mixed = (rewarded.own - rewarded.own[0])[1:]
    if probe.placement == "loss" and not same(plain, mixed):
        yield Finding(
            "form",
            "wrong",
            "The KL is multiplied by advantages: it pulls to the reference after good answers and away from "
            "it after bad ones, and with equal rewards there is none.",
            probe.trace.meeting(REFERENCE, "advantages") or meeting,
            "add the KL to the loss after the advantages: loss = policy_loss + beta * kl",
            "kl-times-advantage",
        )
        return
    if probe.placement == "whole":
        yield Finding("form", "fine", "The KL has the gradient of a whole next-token distribution.")
        return
    found = probe.form
    if found is None:
        yield Finding(
            "form",
            "attention",
            f"The KL term in the {probe.placement} is no estimator that the doctor knows.",
            meeting,
        )
        return
    if found.exchanged:
        yield Finding(
            "form",
            "wrong",
            f"Policy and reference are exchanged{', or the sign is wrong' if found.name == 'k1' else ''}: the term "
            f"is {found.title} of the reference's log-prob minus the policy's.",
            meeting,
            "exchange the two: K1 is logp - ref_logp, K3 exp(ref_logp - logp) - (ref_logp - logp) - 1",
            "exchanged",
        )
    else:
        times = ", times a ratio that carries a gradient" if found.ratio else ""
        yield Finding("form", "fine", f"The KL of a token is {found.title}{times}, in the {probe.placement}.")
    yield from _clipped(probe, meeting)


def _clipped(probe: Probe, meeting: Line | None) -> Iterator[Finding]:
    """Where the term stops being what it is for small log-ratios."""
    limits = probe.limits
    if not limits:
        return
    found = probe.form
    assert found is not None
    dead = all(abs(limit.own) < 1e-9 * found.weight for limit in limits) and probe.placement == "loss"
    what = "its gradient is 0" if dead else "it is no longer what it is for small ones"
    where = words([f"{'below' if limit.delta < 0 else 'above'} {limit.delta:.2g}" for limit in limits])
    clamps = [
        op.line
        for op in probe.trace.operations
        if op.name in _CLAMPS and REFERENCE in op.all_origins and "advantages" not in op.all_origins
    ]
    yield Finding(
        "clip",
        "attention",
        f"The KL is clipped: at log-ratios {where} {what}, and a token that has gone so far from the reference "
        "is not brought back.",
        clamps[-1] if clamps else meeting,
        "do not clip the KL in the loss; clip the gradient's norm, or use K2 or the exact KL, whose gradients "
        "stay moderate",
        "clipped",
    )


def samples(probe: Probe) -> Iterator[Finding]:
    """Whether what is differentiated accounts for the policy that sampled."""
    declared = probe.subject.declared
    if declared.teacher:
        return
    fresh, stale = probe.plain, probe.stale[0]
    corrected = not same(probe.rewarded.completion, probe.stale[1].completion) or not same(
        fresh.completion, stale.completion
    )
    if declared.updates > 1:
        frozen = [
            f for f in probe.trace.forwards if f.model == "policy" and not (f.gradient or f.base or f.scoring)
        ]
        if corrected:
            yield Finding(
                "samples",
                "fine",
                f"Each batch is used for {declared.updates} updates, and tokens are weighted by the ratio to "
                "the policy that sampled.",
            )
        elif frozen:
            yield Finding(
                "samples",
                "wrong",
                f"The old log-probs are recomputed by the updated policy: in all {declared.updates} updates on a "
                "batch the ratio is 1, and nothing is clipped or corrected.",
                frozen[-1].call,
                "compute the old log-probs once, when the batch is sampled, and keep them",
                "recomputed-old",
            )
        else:
            yield Finding(
                "samples",
                "wrong",
                f"Each batch is used for {declared.updates} updates, and no ratio to the policy that sampled "
                "reaches the loss.",
                probe.trace.first([POLICY], ("detach",)) or _policy_line(probe),
                "ratio = exp(logp - old_log_probs), with the log-probs of the policy that sampled",
                "recomputed-old",
            )
    if declared.top_p < 1 or declared.top_k > 0:
        cut = f"top_p={declared.top_p:g}" if declared.top_p < 1 else f"top_k={declared.top_k}"
        if declared.engine and corrected:
            yield Finding("sampler", "fine", f"The sampler is truncated ({cut}), and its log-probs are used.")
        else:
            yield Finding(
                "sampler",
                "wrong",
                f"The sampler draws from a truncated distribution ({cut}), and log-probs are those of the whole "
                "one: tokens outside the kept ones are never drawn, and every estimate of the KL is biased.",
                _policy_line(probe),
                f"sample with {declared.names.get('sampler', 'top_p=1.0, top_k=0')}, or weight every token by its "
                "probability over that of the sampler (its own log-probs)",
                "truncated-sampler",
            )


def denominator(probe: Probe) -> Iterator[Finding]:
    """Whether gradients that are accumulated over micro-batches are that of the batch."""
    whole, halves = probe.halves
    inside = whole.completion.abs().amax(-1) > NOTHING
    if not inside.any():
        return
    both = [(x.completion * whole.completion).sum((-1, -2)) for x in (halves, whole)]
    ratios = (both[0] / both[1])[both[1] > NOTHING]
    low, high = ratios.min().item(), ratios.max().item()
    if high - low < 1e-4 * abs(high):
        if abs(high - 1) < 1e-4:
            yield Finding("denominator", "fine", "Two micro-batches give the gradient of the whole batch.")
        else:
            yield Finding(
                "denominator",
                "wrong",
                f"Two micro-batches give {high:.3g} times the gradient of the whole batch: it is divided "
                f"{'twice' if high < 1 else 'too rarely'}.",
                _reduction(probe),
                "divide by the tokens (or answers) of the whole batch, once",
                "denominator",
            )
        return
    declared = probe.subject.declared
    said = f"the same answer counts {high / low:.2g} times as much in one micro-batch as in another"
    if declared.accumulate == 1:
        yield Finding(
            "denominator",
            "fine",
            f"Tokens are averaged within the micro-batch. Under gradient accumulation {said}.",
        )
        return
    yield Finding(
        "denominator",
        "attention" if declared.token_mean_of == "micro-batch" else "wrong",
        f"Under gradient accumulation {said}: tokens are averaged within each micro-batch.",
        _reduction(probe),
        "divide the sum by the tokens of all micro-batches of the step (num_items_in_batch), or by a constant",
        "denominator",
    )


# what has to be right for a check to mean something
NEEDS = {
    "tokens": {"context"},
    "scores": {"context"},
    "alike": {"context", "scores", "temperature", "reference"},
    "form": {"context", "scores", "alike"},
    "denominator": {"context"},
}
CHECKS: tuple[Check, ...] = (contexts, tokens, scores, reference, alike, form, samples, denominator)


def _token(said: str, line: Line | None, instead: str, fault: str) -> Finding:
    return Finding("tokens", "wrong", said, line, instead, fault)


def _scored(probe: Probe) -> list[object]:
    probe.plain  # noqa: B018 (the run that is traced)
    return list(probe.trace.forwards)


def _reduction(probe: Probe) -> Line | None:
    """The last line that makes one number of many."""
    probe.plain  # noqa: B018
    lines = [op.line for op in probe.trace.operations if op.reduces and POLICY in op.all_origins]
    return lines[-1] if lines else probe.trace.last([POLICY])


def _mask_line(probe: Probe) -> Line | None:
    """Where the mask is made that the loss is multiplied by; where it is multiplied, if it is made elsewhere."""
    masks = {"mask", "labels", "attention mask"}
    made = [op.line for op in probe.trace.operations if op.all_origins and op.all_origins <= masks]
    if made:
        return made[-1]
    return probe.trace.meeting("mask", _MODEL) or probe.trace.meeting("labels", _MODEL)


def _policy_line(probe: Probe) -> Line | None:
    """Where the policy's log-probs are made of its logits."""
    probe.plain  # noqa: B018
    line = probe.trace.first([POLICY], _SCORES)
    forward = next((f.line for f in probe.trace.forwards if f.model == "policy" and f.gradient), None)
    return line or forward


def _call(probe: Probe, model: str) -> Line | None:
    return next((f.call for f in probe.trace.forwards if f.model == model), None)
