"""A whole GRPO training in TRL that takes seconds on a CPU: to try a KL term, an installation, a cluster.

    python -m kl_companion.frameworks.trl_example --kl k2 --steps 5
    accelerate launch --cpu --num_processes 2 -m kl_companion.frameworks.trl_example --kl exact_kl

The model is random and has some thousand parameters, its vocabulary is ten digits and a sign, and the reward
counts digits. Nothing is downloaded, and everything that is written goes into a temporary folder.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from kl_companion.kl_term import KLTerm

CHARACTERS = "0123456789="
PROMPTS = ("12", "345=", "6", "7890", "1=", "2", "33", "404")


class TrainingRun(NamedTuple):
    """What a training left.

    Attributes:
        log: What TRL logged, a dictionary per step.
        parameters: The policy's, in one vector.
        drawn: How far the anchor is from where the policy began: the norm of the difference.
    """

    log: list[dict[str, float]]
    parameters: torch.Tensor
    drawn: float


def reward(completions: list[str], **rest: Any) -> list[float]:
    """A tenth of the sum of the digits that were written."""
    return [sum(int(c) for c in text if c.isdigit()) / 10 for text in completions]


def save_start(folder: Path) -> Path:
    """A random Qwen2 of 2,880 parameters with its tokenizer, from where TRL reads policy and reference."""
    import tokenizers
    import transformers

    words = {word: i for i, word in enumerate(["<pad>", "<bos>", "<eos>", *CHARACTERS])}
    characters = tokenizers.Tokenizer(tokenizers.models.WordLevel(words))
    characters.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex("."), "isolated")
    characters.decoder = tokenizers.decoders.Fuse()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=characters,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
    config = transformers.Qwen2Config(
        vocab_size=len(words),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        initializer_range=16**-0.5,  # logits of unit variance: far from a uniform policy
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        transformers.Qwen2ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def settings(folder: Path, **changes: Any) -> Any:
    """TRL's `GRPOConfig` of a few steps: groups of four completions, on the CPU, nothing reported."""
    from trl import GRPOConfig

    chosen: dict[str, Any] = {
        "output_dir": str(folder),
        "use_cpu": True,
        "bf16": False,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "logging_steps": 1,
        "gradient_checkpointing": False,
        "per_device_train_batch_size": 4,
        "num_generations": 4,
        "max_completion_length": 6,
        "max_steps": 2,
        "learning_rate": 0.1,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 10.0,
        "beta": 0.1,
        "seed": 3,
    }
    return GRPOConfig(**{**chosen, **changes})


def make(kind: Any, start: Path, args: Any, **options: Any) -> Any:
    """A trainer of that kind, whose steps are the gradient times the rate."""
    from datasets import Dataset

    made = kind(
        model=str(start),
        reward_funcs=reward,
        args=args,
        train_dataset=Dataset.from_dict({"prompt": list(PROMPTS)}),
        **options,
    )
    made.optimizer = torch.optim.SGD(made.model.parameters(), lr=args.learning_rate)
    return made


@contextmanager
def quiet() -> Iterator[None]:
    """TRL's trainer prints its log and warns about settings that this model has on purpose."""
    import transformers

    logging = transformers.utils.logging
    shown, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        logging.set_verbosity(shown)
        if bars:
            logging.enable_progress_bar()


def train(
    kl: str | KLTerm | None = None,
    *,
    stock: bool = False,
    steps: int = 3,
    watch: Callable[[Any], object] | None = None,
    **changes: Any,
) -> TrainingRun:
    """Train the tiny model.

    Args:
        kl: The term of `kl_companion.frameworks.trl_trainer.GRPOTrainer`; None is TRL's own.
        stock: Take TRL's own trainer, which has no ``kl``.
        steps: Optimizer steps.
        watch: Called with the trainer before it trains, such as `kl_companion.monitor.KLMonitor.attach`.
        **changes: Settings of TRL's `GRPOConfig`.

    Raises:
        ValueError: settings or a term that cannot work, as the trainer says; a term for the stock trainer.
        ImportError: the extra `trl` is not installed.
    """
    if stock and kl is not None:
        raise ValueError(f"stock=True got kl={kl!r}: TRL's own trainer takes none")
    from kl_companion.frameworks.trl_trainer import GRPOTrainer

    kind: Any = GRPOTrainer.__mro__[1] if stock else GRPOTrainer
    options = {} if stock else {"kl": kl}
    with tempfile.TemporaryDirectory() as name, quiet():
        folder = Path(name)
        args = settings(folder / "out", max_steps=steps, **changes)
        made = make(kind, save_start(folder / "start"), args, **options)
        made.callback_handler.callbacks = [
            c for c in made.callback_handler.callbacks if type(c).__name__ != "PrinterCallback"
        ]
        if watch is not None:
            watch(made)
        before = torch.nn.utils.parameters_to_vector(made.model.parameters()).detach().clone()
        made.train()
        after = torch.nn.utils.parameters_to_vector(made.model.parameters()).detach()
        anchor = torch.nn.utils.parameters_to_vector(made.ref_model.parameters()).detach()
    return TrainingRun(made.state.log_history[:-1], after, (anchor - before).norm().item())


def main(arguments: list[str] | None = None) -> None:
    """Train and print reward and KL of every step, from the first process only."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kl", default="k2", help="a registered estimator (default: %(default)s)")
    parser.add_argument("--placement", choices=("loss", "reward"), default="loss")
    parser.add_argument("--beta", type=float, default=0.1)
    parser.add_argument("--steps", type=int, default=5)
    chosen = parser.parse_args(arguments)
    try:
        run = train(
            KLTerm(chosen.kl, chosen.placement),
            steps=chosen.steps,
            scale_rewards="none" if chosen.placement == "reward" else "group",
            beta=chosen.beta,
            per_device_train_batch_size=4 // min(4, int(os.environ.get("WORLD_SIZE", "1"))),
        )
    except ValueError as error:
        raise SystemExit(f"trl_example: {error}") from None
    if int(os.environ.get("RANK", "0")) == 0:
        print(f"{'step':>4}  {'reward':>7}  {'kl':>8}")
        for step, row in enumerate(run.log, start=1):
            print(f"{step:>4}  {row['reward']:>7.3f}  {row['kl']:>8.4f}")


if __name__ == "__main__":
    main()
