"""State, time and mode of a trainer: dropout that is active, a reference that moves, a beta that changes."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from kl_companion.monitor.doctor.findings import DoctorFinding, finding
from kl_companion.monitor.doctor.probing import Probe
from kl_companion.monitor.doctor.setting_lines import setting_line
from kl_companion.monitor.doctor.tracing import Line, outside_libraries

_MEASURED = 200_000_000  # parameters of a model that is run to measure its dropout
_TOKENS, _PASSES = 24, 4
_MOVED = 1e-9


class Dropout(NamedTuple):
    """Dropout that is active while a model scores.

    Attributes:
        rate: The largest probability.
        layers: Number of modules that have one.
        adapters: Whether all of them belong to adapters.
        change: Mean KL per token from the same model without dropout, nats; None where it was not measured.
    """

    rate: float
    layers: int
    adapters: bool
    change: float | None


def state(probe: Probe) -> Iterator[DoctorFinding]:
    """Whether policy, reference and beta are, step after step, what the settings say."""
    trainer = getattr(probe.subject, "trainer", None)
    if trainer is None:
        return
    policy = trainer.accelerator.unwrap_model(trainer.model)
    reference = getattr(trainer, "teacher_model", None) or getattr(trainer, "ref_model", None)
    reference = None if reference is None else trainer.accelerator.unwrap_model(reference)
    kind = type(trainer.args).__name__
    for key, model, training in (
        ("policy", policy, True),
        ("reference", reference, getattr(reference, "training", False)),
    ):
        dropout = active_dropout(model) if model is not None and training else None
        if dropout is not None:
            size = "" if dropout.change is None else f" ({dropout.change:.2g} nats a token, on its weights)"
            line = setting_line("train", None) if key == "reference" else setting_line("disable_dropout")
            key = f"{key}-adapters" if dropout.adapters else key
            gaps = {"rate": dropout.rate, "layers": dropout.layers, "size": size, "kind": kind}
            yield finding(f"dropout.{key}", line, **gaps)
    if reference is None or reference is policy:
        return
    own = {x.data_ptr() for x in policy.parameters() if x.numel()}
    shared = sum(x.data_ptr() in own for x in reference.parameters() if x.numel())
    if shared:
        total = sum(1 for _ in reference.parameters())
        yield finding("time.shared", setting_line("ref_model"), shared=shared, total=total)
    yield from _settings(trainer, kind)
    yield from _changes(probe, trainer)


def _settings(trainer: Any, kind: str) -> Iterator[DoctorFinding]:
    """Findings on a reference that the settings synchronize."""
    args = trainer.args
    if not getattr(args, "sync_ref_model", False) or getattr(trainer, "beta", 1.0) == 0:
        return
    share, steps = args.ref_model_mixup_alpha, args.ref_model_sync_steps
    gaps = {"share": share, "rest": 1 - share, "steps": steps, "beta": getattr(trainer, "beta", None)}
    key = "copied" if share == 1 and steps == 1 else "synchronized"
    line = setting_line("ref_model_sync_steps", steps) or setting_line("sync_ref_model", True)
    yield finding(f"time.{key}", line, kind=kind, **gaps)


def _changes(probe: Probe, trainer: Any) -> Iterator[DoctorFinding]:
    """Findings on callbacks of the user's and on a loss that move the reference or change beta."""
    subject: Any = probe.subject
    for callback in trainer.callback_handler.callbacks if hasattr(trainer, "callback_handler") else []:
        line = _class_line(type(callback))
        if line is None:
            continue
        gaps: dict[str, Any] = {"name": type(callback).__name__, "before": subject.beta_before}
        try:
            share, beta = subject.after_steps(probe.world(), callback)
        except Exception as error:  # the user's code, on a model of another form than theirs
            yield finding("time.not-tried", line, error=f"{type(error).__name__}: {error}", **gaps)
            continue
        if abs(share) > _MOVED:
            key = "copies" if share > 0.999 else "moves"
            yield finding(f"time.callback-{key}", line, share=share, **gaps)
        if beta != subject.beta_before:
            yield finding(f"time.beta-{'changes' if beta else 'ends'}", line, after=beta, **gaps)
    moved, before, after = subject.moved, subject.beta_before, getattr(trainer, "beta", None)
    if moved > _MOVED:
        yield finding("time.loss-moves", _class_line(type(trainer)), name=type(trainer).__name__)
    if before != after:
        gaps = {"before": before, "after": after, "name": type(trainer).__name__}
        yield finding("time.loss-changes-beta", _class_line(type(trainer)), **gaps)


def _class_line(kind: type) -> Line | None:
    """Return the first line of a method of a user's class; None for a library's class."""
    for method in vars(kind).values():
        code = getattr(inspect.unwrap(method) if callable(method) else method, "__code__", None)
        if code is not None and outside_libraries(code.co_filename):
            return Line(code.co_filename, code.co_firstlineno)
    return None


def active_dropout(model: torch.nn.Module) -> Dropout | None:
    """Return the dropout that is active where a model is in training mode, None without any.

    Args:
        model: Not changed; one that is not too large is run on a few tokens to measure what dropout does.
    """
    rates: dict[str, float] = {}
    for name, module in model.named_modules():
        rate = getattr(module, "p", 0.0) if isinstance(module, torch.nn.modules.dropout._DropoutNd) else 0.0
        rate = max(rate, _number(getattr(module, "attention_dropout", 0.0)))
        if rate > 0:
            rates[name] = rate
    if not rates:
        return None
    adapters = all("lora" in name.lower() for name in rates)
    return Dropout(max(rates.values()), len(rates), adapters, _change(model))


def _number(x: Any) -> float:
    return float(x) if isinstance(x, int | float) else 0.0


def _change(model: Any) -> float | None:
    """Return the mean KL(without dropout || with dropout) on a few tokens; None where it cannot be run."""
    size = getattr(getattr(model, "config", None), "vocab_size", 0)
    if not size or sum(x.numel() for x in model.parameters()) > _MEASURED:
        return None
    device = next(model.parameters()).device
    training = {name: x.training for name, x in model.named_modules()}
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        ids = torch.randint(0, size, (1, _TOKENS)).to(device)
        try:
            logps = []
            for mode in (False, *[True] * _PASSES):
                model.train(mode)
                logps.append(model(input_ids=ids).logits.double().log_softmax(-1))
        except Exception:  # a model that needs more than token ids
            return None
        finally:
            for name, x in model.named_modules():
                x.training = training[name]
    return sum((logps[0].exp() * (logps[0] - x)).sum(-1).mean().item() for x in logps[1:]) / _PASSES
