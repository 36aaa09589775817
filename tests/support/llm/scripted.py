"""A stand-in for a model that says what a test tells it to, one token per row and step."""

from __future__ import annotations

from types import SimpleNamespace

import torch


class Cache:
    def __init__(self, script: torch.Tensor) -> None:
        self.script, self.step = script, 0

    def batch_repeat_interleave(self, n: int) -> None:
        """The script has a row for every completion already."""


class Scripted(torch.nn.Module):
    """Logits that leave one token, ``script[row][t]``, whatever was read; ``read`` has what was fed."""

    device = torch.device("cpu")

    def __init__(self, script: list[list[int]], vocab: int, *, examples: int | None = None) -> None:
        super().__init__()
        self.script, self.vocab = torch.tensor(script), vocab
        self.examples = len(script) if examples is None else examples
        self.read: list[torch.Tensor] = []
        self.config = SimpleNamespace(get_text_config=lambda: SimpleNamespace(max_position_embeddings=64))
        self.generation_config = SimpleNamespace(eos_token_id=None)

    def forward(self, tokens, past_key_values=None, **_):
        cache = past_key_values or Cache(self.script)
        wanted = self.script[:, cache.step]
        if cache.step == 0:
            wanted = wanted[:: len(self.script) // self.examples]
        self.read.append(tokens)
        cache.step += 1
        logits = torch.full((len(wanted), 1, self.vocab), -torch.inf)
        return SimpleNamespace(logits=logits.scatter(-1, wanted[:, None, None], 0.0), past_key_values=cache)
