"""The monitor: what it is told of a run once, and what it makes of a step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from kl_companion.checks import check_scalar, check_temperature, check_whole
from kl_companion.estimators.registry import Estimator, as_estimator
from kl_companion.host_reads import any_of, collecting, explained, on_host
from kl_companion.kl_term import KLTerm, as_term
from kl_companion.monitor import folder as files
from kl_companion.monitor.given import (
    StepAnswers,
    check_logits,
    check_sampled,
    checked,
    clamp_of,
    ends_of,
    engine_of,
    number_on_host,
    one_number,
)
from kl_companion.monitor.largest_tokens import LargeToken, largest
from kl_companion.monitor.logged_as import EXCHANGED, logged_as
from kl_companion.monitor.looking import LogitsRead, at_tokens, look
from kl_companion.monitor.mismatch import Engine
from kl_companion.monitor.moments import Asked
from kl_companion.monitor.observation import Observation
from kl_companion.monitor.summary import columns_of, sampled_of

Pair = tuple[Any, Any]


def _pairs(given: StepAnswers, pair: Pair) -> tuple[dict[str, Pair], torch.Tensor]:
    """Return the log-probs between which a trainer may take its KL, and the answer of every token."""
    policy, reference = pair
    pairs = {"policy/reference": (policy, reference), EXCHANGED: (reference, policy)}
    if given.behavior_logp is not None:
        old = given.behavior_logp.detach()[given.inside].double()
        pairs |= {"old/reference": (old, reference), "old/policy": (old, policy)}
    return pairs, given.inside.nonzero()[:, 0]


class KLMonitor:
    """Watches the KL term of a run: exact numbers of a few answers, every few steps.

    In a loop::

        monitor = KLMonitor("runs/7", beta=0.04, estimator="k3", tokenizer=tokenizer)
        if monitor.due(step):
            monitor.observe(logits, ref_logits, tokens, mask, step=step, logged=kl, advantages=advantages)

    In a trainer of TRL: ``monitor.attach(trainer)``; with a batch of verl: ``monitor.observe_batch(batch)``.

    Args:
        folder: Where `kl_monitor.csv`, `kl_monitor_tokens.jsonl` and `kl_monitor.json` go; None writes
            nothing (attached to a trainer: its ``output_dir``).
        every: Observe step 1 and then every so many optimizer steps.
        rows: Completions that `attach` takes of a step at most, and never more than half of them; None takes
            all that are computed at once. `observe` reads what it gets.
        temperature: Of the policy that is trained; logits of policy and reference are divided by it.
        estimator: What the trainer's own number is: a registered name such as ``"k3"``, or a function of
            ``(logp, ref_logp)``; None where that is not known.
        clamp: (lowest, highest) log policy/reference that the trainer's estimator sees.
        beta: The KL coefficient.
        rewards_divided: How rewards are divided: ``"group_std"``, ``"batch_std"`` or another word; None for
            not at all.
        term: What the trainer differentiates, a `KLTerm` or a name, for its pull on the length; None is the
            exact KL(policy || reference). Of a `KLTerm` the part that a token adds at its own place is read.
        tokenizer: With `decode`; for the tokens in words, by default for the end of an answer, and for the
            columns of logits that are tokens.
        eos_token_id: Id or ids that end an answer.
        engine: The declared `kl_companion.monitor.mismatch.Engine` of the sampler, or its (temperature,
            top_p, top_k); None is one that samples like the trainer.
        model: A name for the report.

    Raises:
        ValueError: a number out of its range, an unknown estimator, a clamp out of order.
    """

    def __init__(
        self,
        folder: str | Path | None = None,
        *,
        every: int = 10,
        rows: int | None = 8,
        temperature: float = 1.0,
        estimator: str | Estimator | Callable[..., Any] | None = None,
        clamp: tuple[float, float] | None = None,
        beta: float | None = None,
        rewards_divided: str | None = None,
        term: str | Estimator | KLTerm | None = None,
        tokenizer: Any = None,
        eos_token_id: int | Iterable[int] | None = None,
        engine: Engine | tuple[float, float, int] | None = None,
        model: str | None = None,
    ) -> None:
        check_whole("every", every, 1)
        check_whole("rows", 1 if rows is None else rows, 1)
        if beta is not None:
            check_scalar("beta", beta)
        self.folder = None if folder is None else Path(folder)
        self.every, self.rows, self.beta = every, rows, beta
        self.rewards_divided, self.tokenizer, self.model = rewards_divided, tokenizer, model
        self.engine = engine_of(engine)
        self.trainer: str | None = None
        self.observations: list[Observation] = []
        self.tokens: tuple[LargeToken, ...] = ()
        self.vocabulary: int | None = None
        self._started = False
        self.asked = Asked(
            check_temperature(temperature),
            None if estimator is None else as_estimator(estimator),
            clamp_of(clamp),
            None if term is None else as_term(term),
            ends_of(eos_token_id, tokenizer),
        )

    def due(self, step: int) -> bool:
        """Whether this optimizer step is observed: step 1, and every ``every``-th."""
        return step == 1 or (step > 0 and step % self.every == 0)

    def observe(
        self,
        logits: torch.Tensor | None,
        ref_logits: torch.Tensor | None,
        tokens: torch.Tensor,
        mask: torch.Tensor,
        *,
        step: int | None = None,
        logp: torch.Tensor | None = None,
        ref_logp: torch.Tensor | None = None,
        logged: float | torch.Tensor | None = None,
        behavior_logp: torch.Tensor | None = None,
        rewards: torch.Tensor | None = None,
        prompt_index: torch.Tensor | None = None,
        advantages: torch.Tensor | None = None,
        deviations: torch.Tensor | float | None = None,
        loss: float | torch.Tensor | None = None,
    ) -> Observation:
        """Look at the answers of a step; a row is added to the folder.

        Nothing of what is given is changed, and nothing gets a gradient.

        Args:
            logits: Raw logits of the policy, [batch, seq, vocab]; position t scores ``tokens[:, t]``. -inf in
                both is a masked token. None where there are only log-probs of sampled tokens: then ``logp``
                and ``ref_logp`` are given, and every column that needs whole distributions stays None, the KL
                too: an estimate from samples never stands where the exact number is expected.
            ref_logits: Of the reference, the same shape. With the monitor's ``tokenizer`` the two may have
                different numbers of columns: those after the last token are padding and are left out.
            tokens: [batch, seq] int64.
            mask: [batch, seq], 1 on completion tokens including end-of-sequence.
            step: The trainer's optimizer step; by default observations are counted.
            logp: [batch, seq], at the policy's temperature, in place of the logits.
            ref_logp: The same of the reference.
            logged: The trainer's own KL per token, of these tokens; NaN or an infinity where it has one.
            behavior_logp: [batch, seq], what the sampling engine said; NaN where it said nothing.
            rewards: [answers] of the whole step, of which fewer answers may be looked at; NaN: not scored.
            prompt_index: [answers] like ``rewards``: which of them form a group.
            advantages: [batch] or [batch, seq], of the answers that are looked at.
            deviations: By what rewards were divided: one for all, or one per group or answer of the step.
            loss: The trainer's loss.

        Returns:
            The observation.

        Raises:
            ValueError: what does not fit together, NaN, log-probs above 0, an infinite KL. Then nothing was
                written.
        """
        begin = time.perf_counter()

        def examine() -> tuple[StepAnswers, LogitsRead | None, Pair]:
            given = checked(
                tokens,
                mask,
                behavior_logp=behavior_logp,
                advantages=advantages,
                rewards=rewards,
                prompt_index=prompt_index,
                deviations=deviations,
            )
            said = one_number("logged", logged), one_number("loss", loss)
            return given, self._looked(logits, ref_logits, (logp, ref_logp), given), said

        with collecting() as flags:
            given, looked, said = examine()
        step = check_whole("step", len(self.observations) if step is None else step, 0)
        seen = (given, looked, (logp, ref_logp), said)
        (given, looked, sampled, said), wrong = on_host((seen, any_of(flags)))
        if wrong:
            explained(examine)
        return self.conclude(given, looked, sampled, step=step, begin=begin, logged=said[0], loss=said[1])

    def _looked(self, logits: Any, ref_logits: Any, sampled: Pair, given: StepAnswers) -> LogitsRead | None:
        """What is read of the logits; None where there are log-probs in their place, which are checked."""
        if logits is None:
            if ref_logits is not None:
                raise ValueError("got ref_logits without logits, expected both or neither")
            check_sampled(*sampled, given)
            return None
        if sampled != (None, None):
            raise ValueError("got logits and log-probs, expected logp and ref_logp only without logits")
        logits, ref_logits = check_logits(logits, ref_logits, given, self.asked.ends, self.tokenizer)
        self.vocabulary = logits.shape[-1]
        return self.look(logits, ref_logits, given)

    def look(
        self, logits: Any, ref_logits: Any, given: StepAnswers, engine: Engine | None = None
    ) -> LogitsRead:
        """What is read of the logits of some answers, [batch, seq, vocab], checked before; for hooks."""
        more = {"declared": self.engine, "engine": engine}
        return look(logits, ref_logits, given.tokens, given.inside, given.behavior_logp, self.asked, **more)

    def conclude(
        self,
        given: StepAnswers,
        looked: LogitsRead | None,
        sampled: Pair = (None, None),
        *,
        step: int,
        begin: float,
        logged: float | torch.Tensor | None = None,
        loss: float | torch.Tensor | None = None,
    ) -> Observation:
        """The observation of answers whose logits were looked at, written to the folder; for hooks.

        Args:
            given: Checked.
            looked: Of all their tokens; None where only ``sampled`` log-probs are known.
            sampled: Log-probs under policy and reference, [batch, seq], without ``looked``.
            step: The optimizer step.
            begin: Time at which the observation began, of `time.perf_counter`.
            logged: The trainer's KL, where it is known.
            loss: Its loss, where it is known.
        """
        given, looked, sampled, said = on_host((given, looked, sampled, (logged, loss)))
        logged, loss = (number_on_host(name, x) for name, x in zip(("logged", "loss"), said, strict=True))
        looked = None if looked is None else at_tokens(looked, given)
        pair = sampled_of(given, looked, sampled)
        more = columns_of(given, looked, pair, self.asked, self.beta, self.rewards_divided, logged)
        large = largest(*pair, given.tokens, given.inside, self.tokenizer)
        seconds = time.perf_counter() - begin
        made = Observation(
            step=step,
            answers=len(given.inside),
            tokens=len(pair[0]),
            logged=logged,
            loss=loss,
            seconds=seconds,
            **more,
        )
        if self.folder is not None:
            if not self._started:
                self.start()
            files.append(self.folder, made, large, logged_as(logged, *_pairs(given, pair), self.beta))
        self.observations.append(made)
        self.tokens = large
        return made

    def start(self, *, resume: bool = False) -> None:
        """Begin the files in the folder; the first observation does so too. See `folder.start`."""
        if self.folder is not None:
            files.start(self.folder, self.about(), resume=resume)
        self._started = True

    def about(self) -> Mapping[str, Any]:
        """What the run says of itself, as in `kl_monitor.json` beside the format."""
        entry, engine = self.asked.estimator, self.engine or Engine(self.asked.temperature)
        return {
            "trainer": self.trainer,
            "estimator": None if entry is None else entry.name,
            "clamp": None if self.asked.clamp is None else list(self.asked.clamp),
            "beta": self.beta,
            "temperature": self.asked.temperature,
            "top_p": engine.top_p,
            "top_k": engine.top_k,
            "rewards_divided": self.rewards_divided,
            "every": self.every,
            "rows": self.rows,
            "model": self.model,
            "vocabulary": self.vocabulary,
        }

    def observe_batch(self, batch: Any, **more: Any) -> Observation:
        """`observe` of a batch with verl's names; see `kl_companion.monitor.verl`."""
        from kl_companion.monitor.verl import arguments

        return self.observe(**arguments(batch, **more))

    def attach(self, trainer: Any, *, reference: Any = None) -> Any:
        """Observe the steps of a trainer of TRL; see `kl_companion.monitor.trl.attach`."""
        from kl_companion.monitor.trl import attach

        return attach(self, trainer, reference=reference)
