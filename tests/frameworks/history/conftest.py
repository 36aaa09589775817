"""Scripts of reports run in forks of a warm process; one test runs them without it, on torch alone."""

import pytest

from kl_companion.frameworks.history import reproduction
from tests.support.warm import command


@pytest.fixture(autouse=True)
def warm_scripts(monkeypatch):
    """What runs a script of a report: two seconds of imports less each time."""
    monkeypatch.setattr(reproduction, "ALONE", tuple(command()))
