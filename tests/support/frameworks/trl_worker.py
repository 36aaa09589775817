"""What each of two processes does: two short trainings, whose weights it leaves in the folder it is given."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from safetensors.torch import save_file

from kl_companion.frameworks.trl_trainer import GRPOTrainer, ema_anchor
from kl_companion.kl_term import KLTerm
from tests.support.frameworks.trl_tiny import settings, weights, with_sgd
from tests.support.launching import fork_two


def main(start: Path, folder: Path) -> None:
    """An exact term in the loss with a moving anchor, then costs of tokens in the reward."""
    kinds = {
        "loss": (KLTerm("exact_kl"), ema_anchor(0.9)),
        "reward": (KLTerm("k1", "reward"), {"num_iterations": 2, "scale_rewards": "none"}),
    }
    for name, (term, more) in kinds.items():
        # groups of four over two processes of two
        args = settings(folder / "out", max_steps=2, per_device_train_batch_size=2, **more)
        made = with_sgd(GRPOTrainer, start, args, kl=term)
        assert made.accelerator.num_processes == 2
        made.train()
        rank = made.accelerator.process_index
        save_file(
            {key: x.contiguous().clone() for key, x in weights(made).items()},
            folder / f"{name}-{rank}.safetensors",
        )
    own = torch.arange(6.0).view(2, 3) ** 2 + rank
    save_file({"penalty": made._against_group(own[:, : 2 + rank])}, folder / f"penalty-{rank}.safetensors")


if __name__ == "__main__":
    fork_two(lambda: main(Path(sys.argv[1]), Path(sys.argv[2])))
