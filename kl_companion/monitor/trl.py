"""The monitor in a trainer of TRL: one line before `trainer.train()`, and nothing of the run changes.

::

    KLMonitor().attach(trainer)

Every few optimizer steps, before the trainer computes its loss, the logits of some completions of the batch
are computed once more with policy and reference, in evaluation mode and without gradients, at the trainer's
temperature. The numbers go into the dictionary that the trainer logs, as ``kl_monitor/kl`` and so on, and so
to whatever it logs to; a logged value is that of the latest observation. The files of the run go into the
monitor's folder, or the trainer's ``output_dir``.

Parameters, gradients, loss and the state of random generators are the same with and without it. What fails in
an observation is said in a warning, and training goes on. With several processes each looks at its own
completions, and the first one's numbers are kept.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from kl_companion.host_reads import any_of, collecting, explained
from kl_companion.kl_term import as_term
from kl_companion.monitor.looking import at_tokens
from kl_companion.monitor.observer import Observer
from kl_companion.monitor.trl_looking import (
    BatchRead,
    brought,
    has_adapter,
    kl_metric,
    look_at,
    number_of,
    own_reference,
)
from kl_companion.monitor.trl_reading import TrainerFacts, rewards_of, said_by

PREFIX = "kl_monitor/"


def attach(monitor: Observer, trainer: Any, *, reference: Any = None) -> Any:
    """Observe the steps of a trainer.

    What the trainer says of itself (temperature, sampling, beta, estimator, how rewards are divided, the
    tokenizer) is taken over where the monitor was not told otherwise; the temperature always.

    Args:
        monitor: Its ``every`` and ``rows`` say how often, and how many completions of a batch.
        trainer: `trl.GRPOTrainer`, `RLOOTrainer`, `DistillationTrainer`, `trl.experimental.gkd.GKDTrainer`,
            or a class that inherits from one.
        reference: A model to compare with; by default the trainer's reference or teacher, or its policy
            without the adapter of PEFT.

    Returns:
        The `transformers.TrainerCallback` that was added; its ``detach()`` takes everything back.

    Raises:
        ValueError: another trainer, one that is observed already, or one without a reference (``beta=0``).
    """
    from transformers import TrainerCallback

    said = said_by(trainer)
    if isinstance(vars(trainer).get("compute_loss"), _Wrapped):
        raise ValueError("a monitor is attached to this trainer already, expected one: detach it first")
    if reference is None and own_reference(trainer) is None and not has_adapter(trainer):
        raise ValueError(
            f"{said.trainer} has no reference (with beta=0 TRL loads none), expected reference=<a model>"
        )
    watch = _Watch(monitor, trainer, said, reference)

    class KLMonitorCallback(TrainerCallback):
        """Begins the files of the run; `detach` takes the monitor out of the trainer."""

        observations = monitor.observations

        def on_train_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            watch.begin(resume=state.global_step > 0)

        def detach(self) -> None:
            """The trainer as it was."""
            watch.take_out()
            trainer.remove_callback(self)

    callback = KLMonitorCallback()
    trainer.add_callback(callback)
    watch.put_in()
    return callback


class _Wrapped:
    """A method of a trainer with something before or after it.

    Args:
        original: The method.
        around: What is called in its place, with the method first.
        hidden: Whether the method was the instance's own, which is put back, and not the class's.
    """

    def __init__(self, original: Any, around: Any, hidden: bool) -> None:
        self.original, self.around, self.hidden = original, around, hidden

    def __call__(self, *given: Any, **options: Any) -> Any:
        return self.around(self.original, *given, **options)


class _Watch:
    """A monitor in a trainer: what it remembers between two calls of the trainer's methods."""

    def __init__(self, monitor: Observer, trainer: Any, said: TrainerFacts, reference: Any) -> None:
        self.monitor, self.trainer, self.said, self.reference = monitor, trainer, said, reference
        self.step = -1  # the last one that was looked at or passed over
        self.rewards: torch.Tensor | None = None
        self.pending: dict[str, float] = {}
        self.warned: set[str] = set()
        _take_over(monitor, trainer, said)

    def put_in(self) -> None:
        """Hide three methods of the trainer behind ours."""
        for name, around in (
            ("compute_loss", self.around_loss),
            ("log", self.around_log),
            ("_calculate_rewards", self.around_rewards),
        ):
            if hasattr(self.trainer, name):
                own = name in vars(self.trainer)  # as another wrapper leaves it
                setattr(self.trainer, name, _Wrapped(getattr(self.trainer, name), around, own))

    def take_out(self) -> None:
        """The trainer's methods as they were."""
        for name in ("compute_loss", "log", "_calculate_rewards"):
            wrapped = vars(self.trainer).get(name)
            if isinstance(wrapped, _Wrapped):
                delattr(self.trainer, name)
                if wrapped.hidden:
                    setattr(self.trainer, name, wrapped.original)

    def begin(self, *, resume: bool) -> None:
        """Begin the files, in the first process only."""
        if not self.trainer.is_world_process_zero():
            self.monitor.folder = None
        elif self.monitor.folder is None:
            self.monitor.folder = Path(self.trainer.args.output_dir)
        self.monitor.start(resume=resume)

    # -- around the trainer's methods --------------------------------------------------------------------

    def around_rewards(self, original: Any, *given: Any, **options: Any) -> Any:
        """Remember the rewards of the whole batch of completions."""
        per_function = original(*given, **options)
        if self.trainer.model.training:
            with self.going_on():
                self.rewards = rewards_of(self.trainer, per_function.detach())
        return per_function

    def around_log(self, original: Any, logs: dict[str, float], *given: Any, **options: Any) -> Any:
        """Add what was observed since the trainer's last log."""
        if self.pending and self.trainer.model.training:
            logs.update(self.pending)
            self.pending = {}
        return original(logs, *given, **options)

    def around_loss(
        self, original: Any, model: Any, inputs: Mapping[str, Any], *given: Any, **options: Any
    ) -> Any:
        """Look at the batch of the first part of a step that is due, and compute the trainer's loss."""
        step = self.trainer.state.global_step + 1
        if not model.training or step == self.step:
            return original(model, inputs, *given, **options)
        self.step = step
        if not self.monitor.due(step):
            return original(model, inputs, *given, **options)
        begin, seen = time.perf_counter(), None

        def look() -> BatchRead | None:
            return look_at(self.monitor, self.trainer, model, inputs, self.said, self.reference, self.rewards)

        with self.going_on(), collecting() as flags:
            seen = look()
        spent, counted = time.perf_counter() - begin, len(kl_metric(self.trainer))
        out = original(model, inputs, *given, **options)
        if seen is not None:
            with self.going_on():
                begin = time.perf_counter() - spent
                self.conclude(seen, inputs, out, begin, counted, any_of(flags), look)
        return out

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Whatever fails inside is said, once of each kind: the run is worth more than its monitor."""
        try:
            yield
        except Exception as error:
            kind = type(error).__name__
            if kind not in self.warned:
                said = f"the KL monitor could not observe step {max(1, self.step)}: {kind}: {error}"
                warnings.warn(said, stacklevel=2)
            self.warned.add(kind)

    def conclude(
        self,
        seen: BatchRead,
        inputs: Mapping[str, Any],
        out: Any,
        begin: float,
        counted: int,
        wrong: torch.Tensor,
        look: Callable[[], object],
    ) -> None:
        """Write the observation, and keep it for the log; ``look`` names a value that is ``wrong``."""
        trainer = self.trainer
        loss = (out[0] if isinstance(out, tuple) else out).detach().float().mean()
        seen, logps, (loss, wrong) = brought(trainer, self.said, seen, inputs, loss, wrong)
        if wrong:
            explained(look)
        loss = loss.item()
        if getattr(trainer, "loss_is_scaled_for_ga", None):
            loss *= trainer.current_gradient_accumulation_steps
        values = kl_metric(trainer)[counted:]  # of the tokens of this part of the step, of all processes
        whole = bool(values) and seen.texts.whole and trainer.accelerator.num_processes == 1
        chosen = seen._replace(looked=at_tokens(seen.looked, seen.given))
        logged = values[-1] if whole else number_of(self.said, chosen, logps, self.monitor.asked.clamp)
        made = self.monitor.conclude(
            seen.given, seen.looked, step=self.step, begin=begin, logged=logged, loss=loss
        )
        self.pending = {f"{PREFIX}{name}": x for name, x in made.known().items() if math.isfinite(x)}


def _take_over(monitor: Observer, trainer: Any, said: TrainerFacts) -> None:
    """Tell the monitor what it was not told."""
    asked = monitor.asked
    if monitor.tokenizer is None:
        given = getattr(trainer, "processing_class", None)
        monitor.tokenizer = getattr(given, "tokenizer", given)  # a processor of images and text holds one
    ends = asked.ends or tuple(getattr(trainer, "eos_token_ids", ()) or ())
    if not ends and getattr(monitor.tokenizer, "eos_token_id", None) is not None:
        ends = (monitor.tokenizer.eos_token_id,)
    term = said.term if asked.term is None else as_term(asked.term)
    monitor.asked = asked._replace(
        temperature=float(said.temperature),
        estimator=said.estimator if asked.estimator is None else asked.estimator,
        term=term,
        ends=ends,
    )
    monitor.beta = said.beta if monitor.beta is None else monitor.beta
    monitor.rewards_divided = monitor.rewards_divided or said.divided
    monitor.engine = said.engine if monitor.engine is None else monitor.engine
    monitor.model = monitor.model or getattr(trainer.model.config, "_name_or_path", None) or None
    monitor.trainer = said.trainer
    if monitor.vocabulary is None:
        monitor.vocabulary = trainer.model.config.get_text_config().vocab_size
