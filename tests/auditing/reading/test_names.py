"""Names of real trainers, what is refused, and what two names together leave open."""

import re
from pathlib import Path

import pytest
import yaml

from kl_companion.auditing.reading.heads import HEADS
from kl_companion.auditing.reading.names import ROLES, Read, Unread, read_name
from kl_companion.auditing.reading.signatures import read_names, refusal

DATA = yaml.safe_load(Path(__file__).with_name("names.yml").read_text(encoding="utf-8"))
NAMES, REFUSED = DATA["roles"], DATA["refused"]
PAIRS = [(f, n, r) for f, roles in NAMES.items() for r, names in roles.items() for n in names.split()]


@pytest.mark.parametrize(("framework", "name", "role"), PAIRS)
def test_names_of_trainers(framework, name, role):
    read = read_name(name)
    assert isinstance(read, Read), read
    assert (read.name, read.role) == (name, role)


def test_there_are_enough_pairs_and_no_two_of_a_framework_are_one():
    assert len({n for _, n, _ in PAIRS}) >= 150
    assert len({(f, n) for f, n, _ in PAIRS}) == len(PAIRS)


@pytest.mark.parametrize("role", [r for r in ROLES if "log_" not in r])
def test_a_role_is_its_own_name(role):
    read = read_name(role)
    assert isinstance(read, Read), read
    assert read.role == role
    assert "vocabulary" not in read.note


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_guessed(name):
    suggestions, why = REFUSED[name]
    unread = read_name(name)
    assert isinstance(unread, Unread), unread
    assert unread.suggestions == tuple(suggestions.split())
    assert why in unread.why


def roles(*names, **mapped):
    reads, unread = read_names(names, mapped)
    return {r.name: r.role for r in reads}, [u.name for u in unread]


def test_the_inputs_of_a_whole_loss():
    names = ["old_log_prob", "log_prob", "advantages", "response_mask", "rollout_is_weights", "config"]
    expected = ["behavior_logp", "logp", "rewards", "completion_mask", "importance_ratio"]
    assert roles(*names) == (dict(zip(names, expected, strict=False)), ["config"])


def test_what_is_said_to_the_reader():
    assert read_name("new_logps") == Read("new_logps", "logp", "log-probs of the current policy")
    assert read_name("ref_logps").said == "log-probs of the reference"
    assert "current policy's" in read_name("logps").note
    assert "whole vocabulary" in read_name("full_logps").note
    assert "not as logits" in read_name("scores").note
    said = [read_name(n).said for n in ("rewards", "advantages", "A_hat", "returns", "scores")]
    assert said == ["rewards", "advantages", "advantages", "returns", "rewards"]


@pytest.mark.parametrize(
    "names",
    [
        ("logprobs", "policy_logprobs"),
        ("teacher_logprobs", "ref_logprobs"),
        ("advantages", "rewards"),
        ("ratio", "rho"),
        ("data", "batch"),
        ("new_logits", "current_logits"),
    ],
)
def test_two_of_one_role_are_left_open(names):
    assert roles(*names) == ({}, list(names))
    _, unread = read_names(names)
    assert all(other in u.why for u in unread for other in names)
    # one that is mapped elsewhere leaves the other
    if names[0] == "logprobs":
        assert roles(*names, logprobs="behavior_logp")[0] == {
            "logprobs": "behavior_logp",
            "policy_logprobs": "logp",
        }
        assert unread[0].suggestions == ("logp", "ref_logp", "behavior_logp")
        assert unread[1].suggestions == ("logp",)


@pytest.mark.parametrize(
    "names", [("prev_logprobs", "generation_logprobs"), ("old_log_probs", "rollout_log_probs")]
)
def test_several_may_have_sampled(names):
    reads, unread = read_names([*names, "mask", "completion_mask"])
    assert not unread
    assert [r.role for r in reads] == ["behavior_logp"] * 2 + ["completion_mask"] * 2
    assert names[1] in reads[0].note
    assert names[0] in reads[1].note


@pytest.mark.parametrize(("p", "q"), [("logp", "logq"), ("log_p", "log_q"), ("lp", "lq"), ("LOG_P", "LOG_Q")])
def test_p_and_q_together(p, q):
    reads, unread = read_names([q, p])
    assert not unread
    assert {r.name: r.role for r in reads} == {p: "logp", q: "ref_logp"}
    assert all("Schulman" in r.note for r in reads)
    assert roles(q, "policy_logp") == ({"policy_logp": "logp"}, [q])
    assert roles("p", "q") == ({}, ["p", "q"])
    assert roles(p, q, "ref_logp")[1] == [q, "ref_logp"]


@pytest.mark.parametrize("case", DATA["together"], ids=str)
def test_names_together(case):
    names, expected = zip(*case.items(), strict=True)
    reads, unread = read_names(names)
    assert not unread
    assert [r.role for r in reads] == list(expected)
    decided = [r for r in reads if "stands beside it" in r.note]
    alone = [read_name(r.name) for r in decided]
    assert all(
        r.role != a.role if isinstance(a, Read) else a.why for r, a in zip(decided, alone, strict=True)
    )


@pytest.mark.parametrize("names", DATA["apart"])
def test_names_that_company_does_not_decide(names):
    *others, last = names.split()
    assert roles(*others, last)[1] == [last]


def test_what_is_taken_is_not_offered_again():
    _, unread = read_names(["logp", "ref_logp", "cached_logps"])
    assert [u.suggestions for u in unread] == [("behavior_logp",)]


def test_a_map_decides():
    assert roles("target_logp", "log_ratio", target_logp="ref_logp", log_ratio="log_ratio") == (
        {"target_logp": "ref_logp", "log_ratio": "log_ratio"},
        [],
    )
    assert roles("x", "y", x="logp", y="logp") == ({"x": "logp", "y": "logp"}, [])
    assert roles("logp", "x", x="logp") == ({"x": "logp"}, ["logp"])


def test_the_refusal_says_what_to_write():
    _, unread = read_names(["student_logprobs_x", "old_lgp", "ref_logp"])
    message = str(refusal("my_loss", unread))
    assert message.startswith("my_loss has")
    assert "--map student_logprobs_x=logp --map old_lgp=behavior_logp" in message
    assert 'roles={"student_logprobs_x": "logp", "old_lgp": "behavior_logp"}' in message
    assert [r for r in ROLES if re.search(rf"^  {r}: ", message, re.M)] == ["logp", "behavior_logp"]
    every = str(refusal("my_loss", [read_name("x")]))
    assert "--map x=ROLE" in every
    assert "--map target_logp=ROLE" in str(refusal("my_loss", [read_name("target_logp")]))
    listed = every.partition("All roles:")[2]
    plain = [r.removeprefix("ref_").removeprefix("behavior_") for r in ROLES if r not in HEADS]
    assert all(re.search(rf"\b{r}\b", listed) for r in plain)
    assert all(re.search(rf"\b{r}\b", listed) for r in HEADS if "_at_" in r and "_logp_" in r)
    assert {"ref_topk_logp", "topk_mask"} <= HEADS.keys() & set(re.findall(r"\w+", listed))
    assert max(map(len, every.splitlines())) <= 100
