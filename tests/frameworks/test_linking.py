"""Functions of an unpacked release with all that they call, from files that are planted."""

import math

import pytest
import torch

from kl_companion.frameworks.installed import Unavailable
from kl_companion.frameworks.linking import link
from tests.support.data import data
from tests.support.frameworks.planted import plant

DATA = data(__file__)


@pytest.fixture
def planted(tmp_path):
    return plant(tmp_path, "planted 0.1")


def linked(planted, name, **given):
    return link(planted, "planted/losses.py", name, given=given)


def test_helpers_are_found_in_the_file_and_through_its_imports(planted):
    assert linked(planted, "half")(6.0) == 3.0
    assert linked(planted, "through_a_module")(5.0) == 10.0


def test_a_method_is_a_function_of_a_stand_in(planted):
    class Stand:
        factor = 10.0

    assert linked(planted, "Loss.forward")(Stand(), torch.tensor(3.0)).item() == 40.0


def test_a_class_has_its_bases_and_static_methods(planted):
    assert linked(planted, "Loss").of(4.0) == 12.0
    assert linked(planted, "Loss.of")(4.0) == 12.0


def test_functions_of_two_files_may_call_each_other(planted):
    assert [linked(planted, "odd")(n) for n in range(4)] == [False, True, False, True]


def test_what_no_standard_module_has_is_missing_when_it_is_read_and_not_before(planted):
    logged = linked(planted, "logged")
    assert logged(1.0) == math.sqrt(1.0)
    with pytest.raises(NameError, match="logger"):
        logged(4.0)


def test_a_decorator_of_gradients_is_kept(planted):
    x = torch.ones((), requires_grad=True)
    assert not linked(planted, "detached")(x).requires_grad


def test_what_is_given_stands_in_everywhere(planted):
    assert linked(planted, "standing", helper=lambda x: -x)(2.0) == -2.0
    assert linked(planted, "half", HALF=5.0)(2.0) == 10.0
    assert linked(planted, "through_a_module", scaled=lambda x, by: by - x)(5.0) == -3.0


def test_of_two_definitions_under_a_condition_one_is_found(planted):
    assert linked(planted, "chosen")(torch.tensor(-1.0)).item() == 0.0


@pytest.mark.parametrize(("file", "name", "message"), DATA["what_is_missing_is_named"])
def test_what_is_missing_is_named(planted, file, name, message):
    with pytest.raises(Unavailable, match=message):
        link(planted, file, name)
