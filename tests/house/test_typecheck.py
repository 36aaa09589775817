"""The tests' own checker of types: it sees what it should, and changes nothing else."""

import inspect
import warnings

import pytest
import torch

from kl_companion import k3, kl_loss
from kl_companion.checks import check_choice
from kl_companion.rollout import Rollout
from tests.support.typecheck import WrongType, checked


def test_an_argument_of_another_type_is_an_error():
    with pytest.raises(WrongType, match=r"check_choice\(\) parameter allowed=5 violates"):
        check_choice("form", 3, 5)


def test_a_user_has_no_such_checker(as_installed):
    with pytest.raises(TypeError, match="not iterable"):
        check_choice("form", 3, 5)


def test_a_result_of_another_type_is_an_error():
    def halves(x: "int") -> "int":
        return x / 2

    with pytest.raises(WrongType, match=r"return 1\.5"):
        checked(halves)(3)
    assert checked(halves).__annotations__ == {"x": "int", "return": "int"}


def test_names_that_only_type_checkers_see_are_not_looked_up():
    def shape(frame: "pd.DataFrame", n: "int" = 1) -> "pd.Series":  # noqa: F821
        return (frame, n)

    assert checked(shape)(2) == (2, 1)
    with pytest.raises(WrongType):
        checked(shape)(2, "one")


def test_whole_numbers_are_floats_and_functions_stay_what_they_are():
    def double(x: float) -> float:
        return 2 * x

    assert checked(double)(3) == 6
    assert inspect.signature(kl_loss).parameters["beta"].default == 1.0
    assert inspect.getsource(k3).startswith("@register_estimator")
    assert inspect.unwrap(Rollout.from_logits.__func__).__name__ == "from_logits"


def test_other_warnings_stay_warnings():
    with pytest.warns(UserWarning, match="plain"):
        warnings.warn("plain", stacklevel=1)
    assert torch.equal(k3(torch.zeros(1), torch.zeros(1)), torch.zeros(1))
