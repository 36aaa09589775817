"""The tokens of the largest log-ratios, with what stands before them."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from kl_companion.monitor.largest_tokens import largest

LETTERS = SimpleNamespace(decode=lambda ids, skip_special_tokens: "".join(chr(97 + x) for x in ids))


def test_the_largest_first_and_the_text_of_the_completion_before_it() -> None:
    tokens = torch.arange(20).view(2, 10)
    inside = torch.ones(2, 10, dtype=torch.bool)
    inside[0, 0] = inside[1, 3] = inside[1, 8:] = False
    logp = -torch.arange(1, int(inside.sum()) + 1).double() / 100
    ref_logp = logp.clone()
    ref_logp[3], ref_logp[9 + 5] = logp[3] + 2, logp[9 + 5] - 3  # (0, 4) and (1, 6): the fourth and the sixth
    first, second, *rest = largest(logp, ref_logp, tokens, inside, LETTERS)
    assert (first.answer, first.position, first.token) == (1, 6, "q")
    assert first.before == "klmop"  # not the tool's token n
    assert first.log_ratio == 3
    assert first.logp - first.ref_logp == 3
    assert (second.answer, second.position, second.token, second.before) == (0, 4, "e", "bcd")
    assert second.log_ratio == -2
    assert len(rest) == 6  # eight at most


def test_ids_without_a_tokenizer_and_a_short_window() -> None:
    tokens, inside = torch.arange(20).view(1, 20), torch.ones(1, 20, dtype=torch.bool)
    logp, ref_logp = torch.zeros(20).double(), torch.zeros(20).double()
    ref_logp[-1] = -1
    first = largest(logp, ref_logp, tokens, inside)[0]
    assert first.token == "19"
    assert first.before.split() == [str(x) for x in range(7, 19)]
