"""Checks of the claims of EMA Policy Gradient on sabotaged ground."""

import pytest
import torch

from kl_companion.book.claims import register
from tests.support.sabotage import assert_noticed, what_is_noticed

IDS = [row.id for row in register().values() if row.source == "emapg2026"]


@pytest.fixture(scope="module")
def noticed():
    """One thread: the worlds are small, and many threads only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield what_is_noticed(IDS)
    torch.set_num_threads(before)


@pytest.mark.parametrize("id", IDS)
def test_every_check_notices_a_sabotage(id, noticed):
    assert_noticed(id, noticed)
