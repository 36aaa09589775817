"""Which line does what: where two origins meet, in place or through a backward of its own; what is kept."""

import contextlib
import sys

import pytest
import torch
from torch import nn

from kl_companion.monitor.doctor import tracing
from kl_companion.monitor.doctor.tracing import (
    POLICY,
    REFERENCE,
    Line,
    Trace,
    current,
    forget,
    label,
    scoring,
    trainer_line,
    unnoted,
)


class Doubled(torch.autograd.Function):
    """Twice, with a backward of its own."""

    @staticmethod
    def forward(ctx, x, y):
        return 2 * x + y

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad, grad


def inputs(trace):
    """A tensor of the policy and one of the reference."""
    policy, reference = torch.ones(3, requires_grad=True), torch.full((3,), 2.0)
    trace.label(policy, POLICY)
    trace.label(reference, REFERENCE)
    return policy, reference


def test_the_line_where_two_origins_meet():
    with Trace() as trace:
        policy, reference = inputs(trace)
        a = policy * 2
        b = reference.exp()
        met = a - b  # meet
        (met * 3 + a).sum()
    assert trace.meeting(POLICY, REFERENCE).text == "met = a - b  # meet"
    assert trace.meeting((POLICY, "other"), REFERENCE).text == "met = a - b  # meet"
    assert trace.meeting(POLICY, "mask") is None
    assert trace.last([REFERENCE]).text == "(met * 3 + a).sum()"
    assert trace.last([POLICY], ["mul"]).text == "(met * 3 + a).sum()"
    assert trace.last([REFERENCE], ["exp"]).text == "b = reference.exp()"
    assert trace.first([POLICY], ["mul"]).text == "a = policy * 2"
    assert trace.first([POLICY], ["exp", "log"]) is None


def test_operations_are_noted_with_shapes_and_origins():
    with Trace() as trace:
        policy, reference = inputs(trace)
        torch.stack([policy, reference]).mean()
    stacked, mean = trace.operations
    assert (stacked.name, stacked.result, stacked.reduces) == ("stack", torch.Size([2, 3]), False)
    assert stacked.origins == (frozenset([POLICY]), frozenset([REFERENCE]))
    assert (mean.name, mean.result, mean.reduces) == ("mean", torch.Size([]), True)
    assert mean.all_origins == {POLICY, REFERENCE}


def test_what_has_no_origin_is_not_noted():
    with Trace() as trace:
        torch.ones(3).sum()
    assert trace.operations == []


def test_through_a_backward_of_its_own():
    stock = torch.autograd.Function.__dict__["apply"]
    with Trace() as trace:
        policy, reference = inputs(trace)
        out = Doubled.apply(policy, reference)  # both
        out.sum().backward()
    assert trace.meeting(POLICY, REFERENCE).text == "out = Doubled.apply(policy, reference)  # both"
    assert trace.operations[0].name == "Doubled"
    assert policy.grad.tolist() == [2.0, 2.0, 2.0]
    assert torch.autograd.Function.__dict__["apply"] is stock


def test_in_place():
    with Trace() as trace:
        policy, reference = inputs(trace)
        a = policy * 1
        a.add_(reference)  # here
        a.sum()
    assert trace.meeting(POLICY, REFERENCE).text == "a.add_(reference)  # here"
    assert trace.operations[-1].all_origins == {POLICY, REFERENCE}
    assert [op.name for op in trace.operations] == ["mul", "add", "sum"]


def test_in_place_on_a_tensor_without_an_origin():
    with Trace() as trace:
        policy, _ = inputs(trace)
        total = torch.zeros(3)
        total += policy
        total.sum()
    assert trace.operations[-1].all_origins == {POLICY}


def test_what_is_only_logged_is_forgotten():
    with Trace() as trace:
        policy, reference = inputs(trace)
        (policy - reference).abs().mean()  # for the log
        loss = (policy**2).sum()
        total = torch.zeros(())
        total += loss
        policy.max()
    trace.keep_what_made(total)
    assert [op.name for op in trace.operations] == ["pow", "sum", "add"]
    assert trace.meeting(POLICY, REFERENCE) is None


def test_what_several_losses_are_made_of_is_kept():
    with Trace() as trace:
        policy, reference = inputs(trace)
        one, two = policy.sum(), reference.sum()
        policy.exp()
    trace.keep_what_made(one, two)
    assert [op.name for op in trace.operations] == ["sum", "sum"]


def test_pauses_and_attempts_that_failed():
    with Trace() as trace:
        policy, _ = inputs(trace)
        with unnoted():
            hidden = policy.exp()
        hidden.sum()  # its origin was not noted
        assert trace.operations == []
        policy.exp()
        assert [op.name for op in trace.operations] == ["exp"]
        forget()
    assert trace.operations == []
    with unnoted():
        forget()  # nothing is entered


def test_labels_go_to_the_trace_that_is_entered():
    x = torch.ones(2)
    label(x, POLICY)
    with scoring():
        assert current() is None
    with Trace() as trace:
        assert current() is trace
        label(x, "mask")
        label(3, "mask")
        label([x], "mask")
        x.sum()
        with scoring():
            assert trace.scoring
        assert not trace.scoring
    assert trace.operations[0].all_origins == {"mask"}
    assert current() is None


def test_lines_of_libraries_are_passed_over():
    linear = nn.Sequential(nn.Linear(3, 1))
    with Trace() as trace:
        policy, _ = inputs(trace)
        linear(policy)  # torch's own files are between
    assert {op.line.text for op in trace.operations} == {"linear(policy)  # torch's own files are between"}


@pytest.mark.parametrize("folder", ["torch", "transformers", "datasets", "accelerate", "peft", "trl/trainer"])
def test_a_folder_of_the_user_may_have_the_name_of_a_library(folder, tmp_path):
    script = tmp_path / folder / "utils.py"
    script.parent.mkdir(parents=True)
    script.write_text("def twice(x):\n    return x + x  # theirs\n")
    code: dict = {}
    exec(compile(script.read_text(), str(script), "exec"), code)
    with Trace() as trace:
        policy, _ = inputs(trace)
        code["twice"](policy)
    assert {(op.line.file, op.line.text) for op in trace.operations} == {
        (str(script), "return x + x  # theirs")
    }


def test_the_installed_files_of_libraries_are_no_line_of_the_user():
    import transformers

    for file in (torch.nn.functional.__file__, transformers.__file__, contextlib.__file__):
        assert tracing._in_library(file)


def test_a_line_is_shown_from_the_working_folder_or_the_name_of_the_library_on(monkeypatch, tmp_path):
    script = tmp_path / "train.py"
    script.write_text("first\n  second = 2  \n")
    line = Line(str(script), 2)
    assert line.text == "second = 2"
    assert str(line) == "train.py:2: second = 2"
    (tmp_path / "a").mkdir()
    inner = tmp_path / "a" / "b.py"
    inner.write_text("x\n")
    monkeypatch.chdir(tmp_path)
    assert str(Line(str(inner), 1)) == "a/b.py:1: x"
    assert str(Line("/x/lib/site-packages/trl/y.py", 7)) == "trl/y.py:7: "


def test_the_innermost_line_is_that_of_the_caller():
    line = trainer_line()
    assert (line.file, line.number) == (__file__, sys._getframe().f_lineno - 1)


def test_an_error_leaves_nothing_behind():
    with pytest.raises(KeyError), Trace():
        raise KeyError
    assert current() is None
    assert (torch.ones(2) + 1).tolist() == [2.0, 2.0]
