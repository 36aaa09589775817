"""The decorator remembers and changes nothing else."""

import subprocess
import sys
from functools import partial
from unittest import mock

import pytest

from kl_companion.testing import Expected, maximizes, minimizes
from kl_companion.testing.expecting import expectations


def loss(logp, ref_logp):
    return logp - ref_logp


def test_a_decorated_loss_is_the_same_object_and_remembers_what_was_said():
    def mine(x):
        return 2 * x

    names, options = {"x": "logp"}, {"beta": 0.1}
    assert minimizes("reverse_kl", roles=names, options=options, stale=True, scale=1.0)(mine) is mine
    names["x"], options["beta"] = "ref_logp", 0.2
    assert mine(3) == 6
    assert expectations(mine) == (
        Expected("reverse_kl", True, {"roles": {"x": "logp"}, "options": {"beta": 0.1}, "scale": 1.0}),
    )


def test_by_default_fresh_samples_judge_and_nothing_else_is_set():
    mine = minimizes("reverse_kl")(partial(loss))
    assert expectations(mine) == (Expected("reverse_kl", False, {}),)
    assert [Expected("a", stale).title for stale in (False, None, True)] == ["a", "a", "a-stale"]


def test_several_lines_add_up():
    mine = minimizes("token_reverse_kl")(minimizes("reverse_kl", stale=None)(partial(loss)))
    assert [(e.want, e.stale) for e in expectations(mine)] == [
        ("reverse_kl", None),
        ("token_reverse_kl", False),
    ]


def test_a_class_is_decorated_and_its_heirs_are_not():
    @minimizes("reverse_kl")
    class Loss:
        pass

    class Heir(Loss):
        pass

    assert len(expectations(Loss)) == 1
    assert expectations(Heir) == ()
    assert expectations(Loss()) == ()


@pytest.mark.parametrize("thing", [loss, 3, "text", mock.Mock(), mock.call, sys, None, [].append])
def test_what_is_not_decorated_expects_nothing(thing):
    assert expectations(thing) == ()


@pytest.mark.parametrize("thing", ["k3", len, (1, 2), mock.Mock().__init__])
def test_what_cannot_remember_is_refused(thing):
    with pytest.raises(ValueError, match=r"minimizes\('reverse_kl'\) got .* expected a function or a class"):
        minimizes("reverse_kl")(thing)


@pytest.mark.usefixtures("as_installed")
def test_a_decorator_without_brackets_is_refused():
    with pytest.raises(ValueError, match=r"want is <function loss .*expected a text"):
        minimizes(loss)


def test_the_decorator_loads_neither_torch_nor_pytest():
    code = (
        "import sys; sys.modules['pytest'] = None; from kl_companion.testing import minimizes; "
        "minimizes('reverse_kl')(lambda: 0); print(sorted({'torch', 'sympy', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_whole_update():
    mine = maximizes("E[R] - 0.1 * sequence_reverse_kl", options={"kl_coef": 0.1}, group_size=8)(
        partial(loss)
    )
    options = {"options": {"kl_coef": 0.1}, "group_size": 8}
    assert expectations(mine) == (Expected("E[R] - 0.1 * sequence_reverse_kl", None, options, update=True),)
    with pytest.raises(
        ValueError, match=r"maximizes\('E\[R\]'\) got <built-in function len>, expected a function"
    ):
        maximizes("E[R]")(len)
