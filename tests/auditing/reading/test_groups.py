"""The size of a group as a loss's own text says it; the verdicts on such losses are derived by hand."""

import re

import pytest
import torch

from kl_companion import audit, audit_update
from kl_companion.auditing.judgment.card import card
from kl_companion.auditing.reading.arguments import Unusable
from kl_companion.auditing.reading.groups import MOST, GroupSize, group_size_of
from kl_companion.auditing.reading.text import FunctionText

GROUP = 4
CONFIG = {"rollout": {"n_samples_per_prompt": 3}}


def centered(rewards, n):
    g = rewards.view(-1, n)
    return (g - g.mean(1, keepdim=True)).view(-1)


def gained(logps, advantages):
    return -(logps.sum(-1) * advantages).mean()


def by_default(logps, rewards, num_generations=4):
    return gained(logps, centered(rewards, num_generations))


def literal(logps, rewards):
    g = rewards.reshape(-1, 4)
    return gained(logps, (g - g.mean(1, keepdim=True)).flatten())


def in_a_helper(logps, rewards):
    return gained(logps, centered(rewards, GROUP))


def own(rewards, n=7):
    return centered(rewards, n)


def of_the_helper(logps, rewards):
    return gained(logps, own(rewards))


def of_a_record(logps, rewards):
    n = CONFIG["rollout"]["n_samples_per_prompt"]
    return gained(logps, torch.cat([x - x.mean() for x in rewards.split(n)]))


def in_a_loop(logps, rewards, group_size=2):
    found = [rewards[i : i + group_size] for i in range(0, len(rewards), group_size)]
    return gained(logps, torch.cat([x - x.mean() for x in found]))


def by_division(logps, rewards, k: int = 5):
    g = rewards.view(len(rewards) // k, k)
    return gained(logps, (g - g.mean(1, keepdim=True)).flatten())


def unflattened(logps, rewards):
    g = rewards.unflatten(0, (-1, GROUP))
    return gained(logps, (g - g.mean(1, keepdim=True)).flatten())


class Trainer:
    def __init__(self, num_generations=2):
        self.num_generations = num_generations

    def loss(self, logps, rewards):
        return gained(logps, self.advantages(rewards))

    def advantages(self, rewards):
        g = rewards.view(-1, self.num_generations)
        return (g - g.mean(1, keepdim=True)).view(-1)


def plain(logp, ref_logp, mask, temperature=2, k=3):
    return ((0.5 * (logp - ref_logp) ** 2).reshape(-1, 1).reshape(logp.shape) * mask).sum(-1).mean()


def of_the_batch(logps, rewards, num_generations):
    return gained(logps, centered(rewards, num_generations))


@pytest.mark.parametrize(
    ("function", "values", "wanted"),
    [
        (by_default, {"num_generations": 4}, GroupSize(4, "num_generations")),
        (by_default, {"num_generations": 8}, GroupSize(8, "num_generations")),
        (literal, {}, GroupSize(4, "rewards.reshape(-1, 4)")),
        (in_a_helper, {}, GroupSize(4, "GROUP")),
        (of_a_record, {}, GroupSize(3, "n")),
        (in_a_loop, {"group_size": 2}, GroupSize(2, "group_size")),
        (by_division, {"k": 5}, GroupSize(5, "k")),
        (unflattened, {}, GroupSize(4, "GROUP")),
        (of_the_helper, {}, GroupSize(7, "n in own")),
        (Trainer(6).loss, {}, GroupSize(6, "self.num_generations in advantages")),
        (plain, {"temperature": 2, "k": 3}, None),
        (of_the_batch, {}, None),
        (torch.exp, {}, None),
    ],
)
def test_the_size_that_a_text_names(function, values, wanted):
    assert group_size_of(FunctionText(function), values) == wanted


@pytest.mark.parametrize(
    ("loss", "options", "size"),
    [
        (by_default, {}, 4),
        (by_default, {"num_generations": 3}, 3),
        (literal, {}, 4),
        (in_a_helper, {}, 4),
        (of_a_record, {}, 3),
        (in_a_loop, {}, 2),
        (by_division, {}, 5),  # divides the 125 rows of a world
        (unflattened, {}, 4),
        (Trainer.loss, {}, 2),
        (Trainer.loss, {"num_generations": 4}, 4),
    ],
)
def test_the_audit_works_in_groups_of_it_and_says_so(loss, options, size):
    """A mean that holds the answer itself leaves 1 - 1/n of the reward."""
    found = audit(loss, scale=1.0, off_policy=False, options=options)
    assert found.main.matches == ({"expected_reward": pytest.approx(1 / size - 1)},)
    assert found.group_size == size
    text = " ".join(card(found).split())
    assert f"with every group of {size} answers enumerated, as {found.group_source} says." in text
    assert "no effect" not in text


def test_leave_one_out_in_groups_is_the_expected_reward():
    def loss(logps, old_logps, rewards, num_generations=4):
        g = rewards.view(-1, num_generations)
        adv = ((g * num_generations - g.sum(1, keepdim=True)) / (num_generations - 1)).view(-1)
        return -(torch.exp((logps - old_logps).sum(-1)) * adv).mean()

    found = audit(loss, scale=1.0)
    assert [f.matches for f in found.findings] == [({"expected_reward": -1.0},)] * 4
    assert "loss maximizes E[R], and has no KL term." in " ".join(str(found).split())


def test_the_caller_s_size_comes_first():
    found = audit(by_default, scale=1.0, off_policy=False, group_size=8)  # two groups of four
    assert (found.group_size, found.group_source) == (8, "")
    assert found.main.matches == ({"expected_reward": pytest.approx(-0.75)},)


def dark(logps, rewards, sizes=({"n": [3]},)):
    return gained(logps, centered(rewards, sum(sizes[0]["n"])))


def test_a_size_that_cannot_be_read_is_offered_after_it_was_tried():
    with pytest.raises(Unusable, match=r"it runs on 3 answers: --group-size 3$"):
        audit(dark)
    found = audit(dark, scale=1.0, off_policy=False, group_size=3)
    assert found.main.matches == ({"expected_reward": pytest.approx(-2 / 3)},)

    def four(logps, rewards, sizes=({"n": [4]},)):  # divides 64 and 36 rows, and not 125
        return gained(logps, centered(rewards, sum(sizes[0]["n"])))

    with pytest.raises(Unusable, match=r"it runs on 4 answers: --group-size 4$"):
        audit(four)

    def never(logps, rewards):
        raise RuntimeError("out of order")

    with pytest.raises(Unusable, match="out of order") as error:
        audit(never)
    assert "--group-size" not in str(error.value)


def test_groups_that_are_too_many_are_refused_with_a_smaller_size():
    with pytest.raises(Unusable, match=re.escape(f"expected at most {MOST}")) as error:
        audit(by_default, options={"num_generations": 64})
    assert str(error.value).endswith(": --set num_generations=4")

    def fixed(logps, rewards):
        return gained(logps, rewards.view(-1, 32)[:, :1].expand(-1, 32).reshape(-1))

    with pytest.raises(Unusable) as error:
        audit(fixed)
    assert "--set" not in str(error.value)


def test_a_number_that_is_mapped_to_the_size_of_the_group_is_that_of_the_batch():
    found = audit(by_default, scale=1.0, off_policy=False, roles={"num_generations": "group_size"})
    assert (found.group_size, found.main.matches) == (None, ({"expected_reward": -1.0},))


@pytest.mark.parametrize(("loss", "options"), [(literal, {}), (dark, {"group_size": 3})])
def test_a_whole_update_runs_in_groups_of_it(loss, options):
    found = audit_update(loss, **options)
    assert "maximizes E[R]; no KL term acts on it." in " ".join(str(found).split())
