"""A training step with a sampled KL, with the exact one and with TRL's distillation loss: time and memory.

    python -m benchmarks.training_step --out rows.json

The model is SmolLM2-135M where it is installed (see `kl_companion.llm.packaged`), else a Llama of the same
shape with random weights. A step is: hidden states of policy and reference, the loss, backward, SGD. All
steps have the same policy gradient; what is compared is the KL term. Times are taken in turn in every round,
peaks in a process each, beyond models and gradients, which are there before.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch

from benchmarks import real_model
from benchmarks.measure import DTYPES, STATUS, Row, device_name, milliseconds, peak_bytes, sweep
from benchmarks.peers import ROOT
from kl_companion import k2
from kl_companion.kernels.linear import linear_kl, linear_logp

BETA, RATE = 0.05, 1e-3


class StepSizes(NamedTuple):
    """What is trained on, and how often it is timed."""

    batch: int = 4
    length: int = 64
    rounds: int = 5
    dtype: str = "float32"
    tiny: bool = False


class StepInputs(NamedTuple):
    """What a loss is made of."""

    hidden: torch.Tensor  # [batch, length, features], of the policy
    weight: torch.Tensor  # [vocab, features]
    ref_hidden: torch.Tensor
    ref_weight: torch.Tensor
    tokens: torch.Tensor  # [batch, length]
    weights: torch.Tensor  # [batch, length]: minus the advantage over the number of tokens

    @property
    def reference(self) -> dict[str, torch.Tensor]:
        """As `linear_kl` takes it."""
        return {"ref_hidden": self.ref_hidden, "ref_weight": self.ref_weight}


# -- the losses ----------------------------------------------------------------------------------------------


def without_kl(i: StepInputs) -> torch.Tensor:
    """The policy gradient alone."""
    return (i.weights * linear_logp(i.hidden, i.weight, i.tokens, weights=i.weights)).sum()


def sampled_kl(i: StepInputs, logp_of: Callable[..., torch.Tensor]) -> torch.Tensor:
    """With K2 of the sampled tokens."""
    logp = logp_of(i.hidden, i.weight, i.tokens)
    with torch.no_grad():
        ref_logp = logp_of(i.ref_hidden, i.ref_weight, i.tokens)
    return (i.weights * logp).sum() + BETA * k2(logp, ref_logp).mean()


def plain_logp(hidden: torch.Tensor, weight: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """As most trainers have it: from logits in memory."""
    logp = (hidden @ weight.T).float().log_softmax(-1)
    return logp.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


def exact_kl(i: StepInputs) -> torch.Tensor:
    """With the exact KL, whose gradient is made in the forward pass."""
    share = torch.full_like(i.weights, BETA / i.weights.numel())
    kl = linear_kl(i.hidden, i.weight, **i.reference, weights=share)
    return without_kl(i) + (share * kl).sum()


def trl_distillation(i: StepInputs) -> torch.Tensor:
    """With the reverse KL of TRL's distillation trainer."""
    from trl.kernels.chunked_divergence import ChunkedDivergenceFunction

    flat, ref_flat = i.hidden.flatten(0, 1), i.ref_hidden.flatten(0, 1)
    kl, _ = ChunkedDivergenceFunction.apply(flat, i.weight, None, ref_flat, i.ref_weight, None, 1.0)
    return without_kl(i) + BETA * kl.mean()


LOSSES: dict[str, Callable[[StepInputs], torch.Tensor]] = {
    "no KL": without_kl,
    "K2 of the sampled tokens": partial(sampled_kl, logp_of=linear_logp),
    "the same from logits": partial(sampled_kl, logp_of=plain_logp),
    "exact KL": exact_kl,
    "TRL, distillation": trl_distillation,
}
SAMPLED = "K2 of the sampled tokens"  # what times are compared with


def losses() -> dict[str, Callable[[StepInputs], torch.Tensor]]:
    """Those that run here."""
    return {name: loss for name, loss in LOSSES.items() if find_spec("trl") or "TRL" not in name}


# -- the step ------------------------------------------------------------------------------------------------


class Training:
    """Two models and a batch, on which steps with any loss can be taken."""

    def __init__(self, sizes: StepSizes) -> None:
        model = _tiny() if sizes.tiny else real_model.model()[0].model
        self.policy = model.to(DTYPES[sizes.dtype])
        self.reference = copy.deepcopy(self.policy).requires_grad_(False)
        for parameter in self.policy.parameters():
            parameter.grad = torch.zeros_like(parameter)
        draw = torch.Generator().manual_seed(0)
        shape, vocab = (sizes.batch, sizes.length + 1), self.policy.config.vocab_size
        self.tokens = torch.randint(vocab, shape, generator=draw)
        advantages = torch.randn(sizes.batch, 1, generator=draw)
        self.weights = -advantages.expand(-1, sizes.length).contiguous() / (sizes.batch * sizes.length)

    def inputs(self) -> StepInputs:
        """Hidden states of both models."""
        hidden, weight = _output_of(self.policy, self.tokens)
        with torch.no_grad():
            reference = _output_of(self.reference, self.tokens)
        return StepInputs(hidden, weight, *reference, self.tokens[:, 1:], self.weights)

    def step(self, name: str) -> float:
        """One step with the loss of that name; the loss before it."""
        for parameter in self.policy.parameters():
            parameter.grad.zero_()
        loss = LOSSES[name](self.inputs())
        loss.backward()
        with torch.no_grad():
            for parameter in self.policy.parameters():
                parameter.sub_(parameter.grad, alpha=RATE)
        return float(loss.detach())


def _output_of(model: Any, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What the output layer reads at all tokens but the last, and its weight."""
    states = model.base_model(tokens[:, :-1], use_cache=False).last_hidden_state
    return states, model.get_output_embeddings().weight


def _tiny() -> Any:
    import transformers

    small = {"vocab_size": 97, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    config = transformers.LlamaConfig(**small, num_attention_heads=2, tie_word_embeddings=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return transformers.LlamaForCausalLM(config)


# -- what is measured ----------------------------------------------------------------------------------------


def times(sizes: StepSizes) -> list[Row]:
    """One row per loss: the median of the milliseconds, and of the ratios to the sampled KL within rounds."""
    training, names = Training(sizes), list(losses())
    taken: dict[str, list[float]] = {name: [] for name in names}
    for name in names:
        training.step(name)  # compiles, and the two models are no longer the same
    for turn in range(sizes.rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            sweep()
            taken[name].append(milliseconds(partial(training.step, name)))
    vocab, hidden = training.policy.get_output_embeddings().weight.shape
    return [
        {
            "loss": name,
            "vocab": vocab,
            "hidden": hidden,
            "milliseconds": statistics.median(taken[name]),
            "of_sampled": statistics.median(a / b for a, b in zip(taken[name], taken[SAMPLED], strict=True)),
        }
        for name in names
    ]


def peak(sizes: StepSizes, name: str) -> float:
    """Megabytes of a step beyond what models and gradients take, in this process."""
    training = Training(sizes)
    training.step(name)
    return peak_bytes(partial(training.step, name)) / 1e6


def _peak_in_a_process(sizes: StepSizes, name: str) -> float | None:
    if not STATUS.exists():
        return None
    command = [sys.executable, "-m", "benchmarks.training_step", "--peak", name, *_options(sizes)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the peak of {name!r} was not measured:\n{done.stderr[-3000:]}")
    return float(done.stdout.splitlines()[-1])


def _options(sizes: StepSizes) -> list[str]:
    named = [f"--{name}={value}" for name, value in sizes._asdict().items() if name != "tiny"]
    return named + ["--tiny"] * sizes.tiny


def rows(sizes: StepSizes) -> list[Row]:
    """The table."""
    base = {"device": device_name("cpu"), **sizes._asdict()}
    return [{**base, **row, "megabytes": _peak_in_a_process(sizes, row["loss"])} for row in times(sizes)]


def main(arguments: list[str] | None = None) -> None:
    """Print the table, or one peak."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training_step")
    for name, default in StepSizes._field_defaults.items():
        if name != "tiny":
            parser.add_argument(f"--{name}", type=type(default), default=default)
    parser.add_argument("--tiny", action="store_true", help="a tiny model")
    parser.add_argument("--out", type=Path, help="a file for the rows, as JSON")
    parser.add_argument("--peak", choices=list(LOSSES), help="for its own processes")
    chosen = parser.parse_args(arguments)
    sizes = StepSizes(*(getattr(chosen, name) for name in StepSizes._fields))
    if chosen.peak:
        print(peak(sizes, chosen.peak))
        return
    found = rows(sizes)
    if chosen.out:
        chosen.out.write_text(json.dumps(found), encoding="utf-8")
    shown = pd.DataFrame(found)[["loss", "milliseconds", "of_sampled", "megabytes"]]
    print(shown.to_string(index=False, float_format="{:.4g}".format))


if __name__ == "__main__":
    main()
