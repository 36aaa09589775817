"""Which columns of logits are tokens, and which logits of two models can be compared."""

from __future__ import annotations

import pytest
import torch

from kl_companion.rollout.vocabularies import common_columns, token_columns, token_count


class Tokenizer:
    """Ids by token, with holes; tokens can be added."""

    vocab_size: int

    def __init__(self, **ids: int) -> None:
        self.ids, self.reads = ids, 0

    def __len__(self) -> int:
        return len(self.ids)

    def get_vocab(self) -> dict[str, int]:
        self.reads += 1
        return self.ids


TOKENIZER = Tokenizer(a=0, b=1, c=2)


def test_the_count_is_the_largest_id_plus_one_also_where_ids_are_left_out() -> None:
    tokenizer = Tokenizer(a=0, b=1, end=6)
    assert [token_count(tokenizer) for _ in range(3)] == [7, 7, 7]
    assert tokenizer.reads == 1
    tokenizer.ids["added"] = 9
    assert token_count(tokenizer) == 10


def test_what_has_no_vocabulary_has_no_count() -> None:
    assert token_count(None) is None
    assert token_count(object()) is None


def test_columns_after_the_last_token_are_left_out() -> None:
    logits = torch.arange(10.0).reshape(2, 5)
    assert token_columns(logits, 3).tolist() == [[0, 1, 2], [5, 6, 7]]
    assert token_columns(logits, None) is token_columns(logits, 5) is token_columns(logits, 9) is logits


@pytest.mark.parametrize(("width", "ref_width"), [(3, 5), (5, 3), (4, 5), (5, 4)])
def test_of_two_widths_the_tokens_are_compared(width: int, ref_width: int) -> None:
    both = torch.rand(2, 4, width), torch.rand(2, 4, ref_width)
    for cut, logits in zip(common_columns(*both, TOKENIZER), both, strict=True):
        assert torch.equal(cut, logits[..., :3])


def test_of_one_width_nothing_is_left_out() -> None:
    both = torch.rand(2, 5), torch.rand(2, 5)
    assert all(x is y for x, y in zip(common_columns(*both, TOKENIZER), both, strict=True))
    assert all(x is y for x, y in zip(common_columns(*both, None), both, strict=True))


@pytest.mark.parametrize("tokenizer", [None, Tokenizer(a=0, b=1, c=2, d=3), Tokenizer(end=5)])
def test_a_width_below_the_vocabulary_is_another_tokenizer(tokenizer: Tokenizer | None) -> None:
    for widths in ((3, 5), (5, 3)):
        shapes = [rf"\[2, {w}\]" for w in widths]
        with pytest.raises(ValueError, match=f"ref_logits has shape {shapes[1]}, expected {shapes[0]}"):
            common_columns(torch.rand(2, widths[0]), torch.rand(2, widths[1]), tokenizer)


def test_tokens_that_were_added_later_may_be_missing_in_one_model() -> None:
    tokenizer = Tokenizer(a=0, b=1, c=2, added=3, more=4)
    tokenizer.vocab_size = 3
    for widths in ((4, 6), (6, 4), (3, 5)):
        both = [torch.rand(2, width) for width in widths]
        for cut, logits in zip(common_columns(*both, tokenizer), both, strict=True):
            assert torch.equal(cut, logits[:, : min(*widths, 5)])
