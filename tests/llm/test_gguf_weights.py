"""Names and orders of the tensors of a GGUF file; the whole conversion is tried in `test_packaged.py`."""

from __future__ import annotations

import numpy as np
import pytest

from kl_companion.llm.gguf_weights import in_order, shard_name, weight_name
from tests.support.data import data

DATA = data(__file__)

AFTER = "post_attention_layernorm"


@pytest.mark.parametrize(
    ("name", "wanted", "shard"),
    DATA["names"],
)
def test_names(name: str, wanted: str, shard: str) -> None:
    assert (weight_name(name), shard_name(name)) == (wanted, shard)


def test_rows_of_a_head_come_in_halves() -> None:
    # two heads of six features: GGUF has pair (0, 3), pair (1, 4), pair (2, 5) side by side
    rows = [0, 3, 1, 4, 2, 5, 10, 13, 11, 14, 12, 15]
    weight = np.array([[row, -row] for row in rows])
    found = in_order(weight, heads=2)
    assert found[:, 0].tolist() == [0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 14, 15]
    assert (found[:, 1] == -found[:, 0]).all()
    assert in_order(weight, None) is weight
