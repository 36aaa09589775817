"""Checks of the claims of EMA Policy Gradient on sabotaged ground."""

import pytest

from kl_book.ledger.claims import register
from tests.support.sabotage import assert_noticed, what_is_noticed

IDS = [row.id for row in register().values() if row.source == "emapg2026"]
pytestmark = pytest.mark.reliability


@pytest.fixture(scope="module")
def noticed():
    return what_is_noticed(IDS)


@pytest.mark.parametrize("id", IDS)
def test_every_check_notices_a_sabotage(id, noticed):
    assert_noticed(id, noticed)
