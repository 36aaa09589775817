"""Checks of the claims on sabotaged ground; those of EMA Policy Gradient have a file of their own."""

import pytest

from kl_book.ledger.claims import register
from tests.support.sabotage import assert_noticed, what_is_noticed

IDS = [row.id for row in register().values() if row.source != "emapg2026"]
pytestmark = pytest.mark.reliability


@pytest.fixture(scope="module")
def noticed():
    return what_is_noticed(IDS)


@pytest.mark.parametrize("id", IDS)
def test_every_check_notices_a_sabotage(id, noticed):
    assert_noticed(id, noticed)
