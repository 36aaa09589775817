import inspect

import pytest

from kl_companion import audit
from kl_companion.auditing import as_loss
from kl_companion.auditing.updates.audit import audit_update
from kl_companion.auditing.updates.step import as_step
from kl_companion.keywords import renamed
from kl_companion.testing import maximizes, minimizes


@renamed(old="new")
def twice(x, *, new=0):
    """Return 2 x + new."""
    return 2 * x + new


def test_new_keyword_and_signature_are_untouched():
    assert twice(3, new=1) == 7
    assert str(inspect.signature(twice)) == "(x, *, new=0)"
    assert twice.__doc__ == "Return 2 x + new."


@pytest.mark.parametrize("value", [1, None, {}])
def test_old_keyword_names_the_new_one(value):
    with pytest.raises(TypeError, match=r"twice\(\) got old=, expected new="):
        twice(3, old=value)


AUDITS = [audit, audit_update, minimizes, maximizes]
READERS = [as_loss, as_step]


@pytest.mark.parametrize(
    ("function", "old", "new"),
    [(f, *names) for f in AUDITS for names in (("map", "roles"), ("set", "options"))]
    + [(f, *names) for f in READERS for names in (("mapped", "roles"), ("settings", "options"))],
)
def test_audits_refuse_their_old_keywords(function, old, new):
    with pytest.raises(TypeError, match=rf"{function.__name__}\(\) got {old}=, expected {new}="):
        function("k3", **{old: {}})
    assert new in inspect.signature(function).parameters
