"""Names, values and sizes of tensors of the k likeliest tokens; what nobody says is refused."""

from pathlib import Path

import pytest
import torch
import yaml

from kl_companion import audit
from kl_companion.auditing.judgment.card import HEIGHT, WIDTH
from kl_companion.auditing.judgment.pictures import figure
from kl_companion.auditing.reading.arguments import Given
from kl_companion.auditing.reading.heads import HEADS, with_size
from kl_companion.auditing.reading.layouts import Layout
from kl_companion.auditing.reading.names import ROLES, Read, Unread, read_name
from kl_companion.auditing.reading.signatures import read_names
from kl_companion.auditing.reading.subject import as_subject
from kl_companion.cli import main
from kl_companion.tabular.populations import population_rollout, population_tree

ROLLOUT = population_rollout(population_tree(4, 3, parts=12, eos=True, off_policy=True, ranked=True))

NAMES = yaml.safe_load(Path(__file__).with_name("names_of_heads.yml").read_text(encoding="utf-8"))
OWN = NAMES["own"]


@pytest.mark.parametrize(("role", "name"), [(r, n) for r, names in OWN.items() for n in names.split()])
def test_a_name_that_says_whose(role, name):
    found = read_name(name)
    assert isinstance(found, Read), found
    assert (found.role, found.said, found.note) == (role, HEADS[role].said, "")


UNSAID = NAMES["unsaid"]


@pytest.mark.parametrize("name", UNSAID)
def test_a_name_that_does_not_say_it_is_not_guessed(name):
    found = read_name(name)
    assert isinstance(found, Unread)
    assert UNSAID[name] in found.why
    assert set(found.suggestions) <= HEADS.keys()


def roles(text, **mapped):
    reads, unread = read_names(text.split(), mapped)
    return {r.name: r.role for r in reads} | {u.name: u.suggestions for u in unread}


@pytest.mark.parametrize(("names", "wanted"), NAMES["together"].items())
def test_names_say_it_together(names, wanted):
    assert roles(names) == dict(zip(names.split(), wanted.split(), strict=True))


def test_what_names_do_not_say_together_is_refused_and_a_map_decides():
    pair = "student_topk_logps teacher_topk_logps"
    assert roles(pair) == {
        "student_topk_logps": ("policy_logp_at_ref_topk",),
        "teacher_topk_logps": ("ref_logp_at_policy_topk",),
    }
    three = f"{pair} topk_ids"
    assert roles(three)["topk_ids"] == ("policy_topk_ids", "ref_topk_ids")
    assert roles(three, topk_ids="ref_topk_ids") == {
        "student_topk_logps": "policy_logp_at_ref_topk",
        "teacher_topk_logps": "ref_topk_logp",
        "topk_ids": "ref_topk_ids",
    }
    assert roles(pair, student_topk_logps="policy_logp_at_ref_topk")["teacher_topk_logps"] == "ref_topk_logp"


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("role", HEADS)
def test_values_by_hand(role, k):
    x = Given(ROLLOUT, Layout(), k).of(role)
    scores = {"policy": ROLLOUT.logits, "reference": ROLLOUT.ref_logits, "behavior": ROLLOUT.behavior_logits}
    head = HEADS[role]
    assert x.shape == (*ROLLOUT.tokens.shape, k)
    for i, t in ((0, 0), (7, 1), (20, 2)):
        at, of = scores[head.at][i, t].tolist(), scores[head.of][i, t].exp()
        ids = sorted(range(4), key=lambda j: -at[j])[:k]
        wanted = {
            "ids": torch.tensor(ids),
            "mask": torch.ones(k, dtype=torch.bool),
            "logits": of[ids].log(),
            "probs": of[ids] / of.sum(),
            "logp": (of[ids] / of.sum()).log(),
        }[head.quantity]
        torch.testing.assert_close(x[i, t].detach(), wanted, check_dtype=head.quantity in ("ids", "mask"))
    if head.quantity in ("logp", "logits", "probs"):
        assert x.requires_grad is (head.of == "policy")


def test_a_head_has_the_columns_of_the_logits():
    wide = Given(ROLLOUT, Layout(shifted=True))
    logits, ids = wide.of("logits"), wide.of("policy_topk_ids")
    assert logits.shape[:2] == ids.shape[:2] == (len(ROLLOUT.tokens), 4)
    torch.testing.assert_close(wide.of("policy_topk_logits"), logits.gather(-1, ids))
    (g,) = torch.autograd.grad(wide.of("policy_topk_logits").sum(), wide.beyond["logits"])
    assert g.any()  # what is behind the last token is the same tensor for all that read it


def test_words():
    assert with_size(ROLES["ref_topk_logp"], 2) == "the 2 likeliest log-probs of the reference"
    assert with_size(ROLES["ref_topk_ids"], 1) == "ids of the likeliest token of the reference"
    assert with_size(ROLES["ref_topk_probs"], 1) == "the likeliest probability of the reference"
    said = with_size(ROLES["policy_logp_at_ref_topk"], 3)
    assert said == "log-probs of the current policy at the 3 likeliest tokens of the reference"


# Sizes, and the card.


def plain_sum(student_logits, teacher_topk_logps, teacher_topk_ids, mask):
    student = student_logits.log_softmax(-1).gather(-1, teacher_topk_ids)
    kl = (teacher_topk_logps.exp() * (teacher_topk_logps - student)).sum(-1)
    return (kl * mask).sum(-1).mean()


def with_size_of_its_own(student_logits, teacher_topk_logps, teacher_topk_ids, mask, topk=64):
    return plain_sum(student_logits, teacher_topk_logps[..., :topk], teacher_topk_ids[..., :topk], mask)


def needs_a_size(student_logits, teacher_topk_logps, teacher_topk_ids, mask, k):
    assert teacher_topk_logps.shape[-1] == k
    return plain_sum(student_logits, teacher_topk_logps, teacher_topk_ids, mask)


def one_by_default(student_logits, teacher_topk_logps, teacher_topk_ids, mask, top_k=1):
    assert teacher_topk_logps.shape[-1] == top_k
    return plain_sum(student_logits, teacher_topk_logps, teacher_topk_ids, mask)


def finds_them(student_logits, teacher_logits, mask, k=2):
    top = teacher_logits.log_softmax(-1).topk(k, dim=-1)
    return plain_sum(student_logits, top.values, top.indices, mask)


def of_a_batch(batch):
    return plain_sum(
        batch["student_logits"], batch["teacher_topk_logps"], batch["topk_ids"], batch["completion_mask"]
    )


def ids_first(batch):
    ids = batch["topk_indices"]
    student = batch["student_logits"].log_softmax(-1).gather(-1, ids)
    teacher = batch["teacher_topk_logps"]
    return ((teacher.exp() * (teacher - student)).sum(-1) * batch["mask"]).sum(-1).mean()


@pytest.mark.parametrize(
    ("loss", "given", "k"),
    [
        (plain_sum, {}, 2),
        (plain_sum, {"k": 1}, 1),
        (plain_sum, {"topk": 3}, 3),
        (with_size_of_its_own, {}, 2),
        (with_size_of_its_own, {"topk": 1}, 1),
        (needs_a_size, {}, 2),
        (needs_a_size, {"k": 3}, 3),
        (one_by_default, {}, 1),
        (finds_them, {}, 2),
        (finds_them, {"k": 1}, 1),
        (of_a_batch, {"k": 1}, 1),
        (of_a_batch, {}, 2),
        (ids_first, {}, 2),
    ],
)
def test_how_many_tokens_a_head_has(loss, given, k):
    assert as_subject(loss, options=given).head == k
    found = audit(loss, options=given, off_policy=False, scale=1.0)
    name = f"token_truncated_forward_kl_reference_top_{k}"
    assert [f.matches for f in found.findings] == [({name: 1.0},)] * 2
    assert f"four small worlds of {k + 2} tokens" in " ".join(str(found).split())
    lines = str(found).splitlines()
    assert (len(lines) <= HEIGHT, max(map(len, lines)) <= WIDTH) == (True, True)


def test_a_size_that_is_a_word_is_refused():
    with pytest.raises(ValueError, match="topk is all, expected 1 to 3"):
        audit(plain_sum, options={"topk": "all"})


def test_a_batch_that_does_not_say_whose_is_refused():
    def loss(batch):
        student, teacher = batch["student_topk_logps"], batch["teacher_topk_logps"]
        return (student.exp() * (student - teacher)).sum(-1)

    with pytest.raises(ValueError, match="nothing says whose likeliest tokens it and teacher_topk_logps"):
        audit(loss)
    found = audit(loss, roles={"teacher_topk_logps": "ref_logp_at_policy_topk"}, off_policy=False, scale=1.0)
    assert found.matches == {"token_truncated_reverse_kl_policy_top_2": 1.0}


def test_a_bucket_for_the_rest_is_told_from_the_whole_vocabulary():
    """In a world of k + 1 tokens the two are one; the audit's have one more."""

    def bucketed(student_logits, teacher_logits, mask, k=2):
        p, q = student_logits.log_softmax(-1), teacher_logits.log_softmax(-1)
        index = q.topk(k, dim=-1).indices
        p, q = p.gather(-1, index), q.gather(-1, index)
        p, q = (torch.cat([x, torch.log1p(-x.exp().sum(-1, keepdim=True))], -1) for x in (p, q))
        return ((q.exp() * (q - p)).sum(-1) * mask).sum(-1).mean()

    found = audit(bucketed, want="forward_kl", off_policy=False, scale=1.0)
    assert found.met is False
    assert found.matches == {"token_bucketed_forward_kl_reference_top_2": 1.0}


def test_the_card_says_how_a_head_was_read_and_gives_no_distance(capsys):
    found = audit(plain_sum, scale=1.0)
    text = " ".join(str(found).split())
    assert "teacher_topk_logps = the 2 likeliest log-probs of the reference" in text
    assert "minimizes forward KL of the reference's top 2, plain sum" in text
    assert "depends on how much probability is outside the 2 likeliest" in text
    assert found.distances == ()
    with pytest.raises(ValueError, match="likeliest tokens"):
        figure(found)
    assert "<svg" not in found._repr_html_()
    assert main(["audit", f"{__file__}:needs_a_size", "--quiet", "--set", "k=1"]) == 0
    assert "k = 1" in capsys.readouterr().out
