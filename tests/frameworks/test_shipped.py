"""Defaults of a release out of its text."""

import pytest

from kl_companion.frameworks.installed import Unavailable
from kl_companion.frameworks.shipped import NEEDED, argument_defaults, chosen, class_defaults
from tests.support.frameworks.planted import plant


@pytest.fixture
def release(tmp_path):
    return plant(tmp_path, "toy 1.0")


def test_fields_with_their_defaults(release):
    assert class_defaults(release, "config.py", "Config") == {
        "beta": 0.0,
        "kinds": [],
        "many": "field(default_factory=lambda: {'a': 1})",
        "limit": None,
        "needed": NEEDED,
        "small": -1e-4,
        "computed": "2 * HALF",
    }


def test_a_base_comes_before_its_class(release):
    found = class_defaults(release, "config.py", "Config", "Base")
    assert (found["beta"], found["inherited"], found["name"]) == (0.0, 3, NEEDED)


def test_options_of_a_parser(release):
    assert argument_defaults(release, "train.py") == {
        "algo.kl.coef": 0.01,
        "use_kl_loss": False,
        "flag": False,
        "name": None,
    }


def test_what_is_missing_is_named(release):
    with pytest.raises(Unavailable, match=r"toy 1\.0 has no Other in config\.py"):
        class_defaults(release, "config.py", "Other")
    with pytest.raises(Unavailable, match=r"toy 1\.0 has no file other\.py"):
        argument_defaults(release, "other.py")


def test_options_replace_defaults_and_unknown_ones_are_refused():
    assert chosen({"beta": 0.0, "kind": "k1"}, {"kind": "k3"}, "toy") == {"beta": 0.0, "kind": "k3"}
    with pytest.raises(ValueError, match=r"option of toy 'kin'\. Did you mean 'kind'\?"):
        chosen({"beta": 0.0, "kind": "k1"}, {"kin": "k3"}, "toy")
