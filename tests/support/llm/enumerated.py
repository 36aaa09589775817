"""Small transformers and all their completions: one forward per prefix, Python's floats, plain sums."""

import itertools
import math

import torch

from kl_companion.llm.generation import Samples
from kl_companion.llm.models import tiny_model
from kl_companion.llm.tasks import Example, Task
from kl_companion.llm.tokenizers import character_tokenizer

PAD, BOS, EOS, A = range(4)
LENGTH = 3


def random_model(alphabet, seed, embedding=1.5, inside=3.0):
    """A transformer whose next-token distributions are far from uniform and depend on the prefix."""
    sizes = {"hidden": 16, "layers": 1, "heads": 2, "kv_heads": 1, "context": 16}
    lm = tiny_model(character_tokenizer(alphabet), seed=seed, dtype=torch.float64, **sizes)
    with torch.no_grad():
        for name, p in lm.model.named_parameters():
            if p.ndim == 2:
                p.mul_(embedding if "embed" in name else inside)
    return lm


def task_of(alphabet, length=LENGTH, **more):
    def draw(n, generator):
        which = torch.randint(0, 2, (n,), generator=generator).tolist()
        return [Example(alphabet * (1 + i), alphabet[::-1][:length]) for i in which]

    reward = more.pop("reward", lambda text, example: float(text == example.answer))
    return Task("small", alphabet, length, draw, reward, **more)


def next_token(lm, prompt, prefix, temperature=1.0):
    with torch.no_grad():
        logits = lm.model(torch.tensor([[*prompt, *prefix]])).logits[0, -1].tolist()
    scaled = [x / temperature for x in logits]
    top = max(scaled)
    total = top + math.log(math.fsum(math.exp(x - top) for x in scaled))
    return [x - total for x in scaled]


class World:
    """All completions of one prompt under two models."""

    def __init__(self, policy, reference, prompt, length, vocab, ends, temperature=1.0):
        self.prompt, self.length, self.ends = prompt, length, ends
        self.rows = {}
        self.completions = []
        for y in itertools.product(range(vocab), repeat=length):
            cut = y.index(EOS) + 1 if ends and EOS in y else length
            if y[:cut] not in self.completions:
                self.completions.append(y[:cut])
        for y in self.completions:
            for t in range(len(y)):
                if y[:t] not in self.rows:
                    both = (next_token(lm, prompt, y[:t], temperature) for lm in (policy, reference))
                    self.rows[y[:t]] = tuple(both)

    def logp(self, who, y):
        return math.fsum(self.rows[y[:t]][who][token] for t, token in enumerate(y))

    def mean(self, who, value):
        return math.fsum(math.exp(self.logp(who, y)) * value(y) for y in self.completions)

    def weights(self, who):
        return torch.tensor([math.exp(self.logp(who, y)) for y in self.completions], dtype=torch.float64)

    def samples(self):
        """Every completion once, as `generate` would return it."""
        count = len(self.completions)
        tokens = torch.tensor([[*y, *[PAD] * (self.length - len(y))] for y in self.completions])
        mask = torch.tensor([[1] * len(y) + [0] * (self.length - len(y)) for y in self.completions])
        prompts = torch.tensor([self.prompt] * count)
        return Samples(
            prompts,
            torch.ones_like(prompts),
            tokens,
            mask,
            mask.clone(),
            torch.zeros(tokens.shape, dtype=torch.float64),
            torch.ones(count, dtype=torch.bool),
            torch.zeros(count, dtype=torch.long),
            [Example("", "")] * count,
            [""] * count,
            [""] * count,
        )
