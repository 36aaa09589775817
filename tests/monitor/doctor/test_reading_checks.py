"""What is said of contexts, tokens and scores: of masks that are off in every way, with what is fine."""

import pytest
import torch

from kl_companion.monitor.doctor.checks import CHECKS, all_findings
from kl_companion.monitor.doctor.reading_checks import contexts, scores, tokens
from tests.support.data import data
from tests.support.small_steps import by_answer, log_probs, probe, step_of

DATA = data(__file__)


def test_what_is_fine_is_said_with_its_size():
    at = probe(step_of())
    (context,), (counted,), (scored,) = contexts(at), tokens(at), scores(at)
    assert context.said == "Every token is scored after its own prompt and the tokens before it."
    assert counted.said == ("All 18 tokens of the answers count, end-of-sequence included, and no other.")
    assert scored.said == "Log-probs are of the sampled tokens, at temperature 1."
    assert {f.level for f in (context, counted, scored)} == {"fine"}


def shifted(by):
    """A mask that is moved by so many tokens to the right."""

    def mask(batch):
        rolled = batch["completion_mask"].roll(by, 1).clone()
        if by > 0:
            rolled[:, :by] = 0
        else:
            rolled[:, by:] = 0
        return rolled

    return mask


def ends(batch):
    """Without the last token, if it is an end."""
    return batch["completion_mask"] * (batch["completion_ids"] != 1)


def without(column):
    """Without the first or the last token."""

    def mask(batch):
        kept = batch["completion_mask"].clone()
        at = torch.zeros(len(kept), dtype=torch.long) if column == 0 else kept.sum(-1) - 1
        kept[torch.arange(len(kept)), at] = 0
        return kept

    return mask


@pytest.mark.parametrize(
    ("mask", "fault", "said"),
    [
        (shifted(1), "shifted-mask", "first token of every answer is left out and the prediction after"),
        (
            lambda batch: torch.ones_like(batch["completion_mask"]),
            "no-mask",
            "after the end of an answer count.",
        ),
        (ends, "no-eos", "The end-of-sequence token is left out"),
        (without(0), "shifted-mask", "33% of the completion's tokens (the first of every answer)"),
        (without(-1), "shifted-mask", "33% of the completion's tokens (the last of every answer)"),
    ],
)
def test_a_mask_that_is_off(mask, fault, said):
    (found,) = tokens(probe(step_of(mask=mask)))
    assert (found.level, found.fault) == ("wrong", fault)
    assert said in found.said


def test_a_single_token_that_is_left_out():
    def mask(batch):
        kept = batch["completion_mask"].clone()
        kept[batch["completion_ids"][:, 0] == 4, 1] = 0  # after the token 4, in two of six answers
        return kept

    (found,) = tokens(probe(step_of(mask=mask)))
    assert found.said == "11% of the completion's tokens have no gradient."


def over_all_ids(weights):
    """K2 of every prediction of a token, weighted."""

    def step(model, ref_model, batch):
        ids = batch["input_ids"]
        both = [
            m(input_ids=ids, attention_mask=batch["attention_mask"])
            .logits[:, :-1]
            .log_softmax(-1)
            .gather(-1, ids[:, 1:, None])
            .squeeze(-1)
            for m in (model, ref_model)
        ]
        return by_answer((both[0] - both[1].detach()) ** 2, weights(batch))

    return step


@pytest.mark.parametrize(
    ("weights", "fault", "said"),
    DATA["weights"],
)
def test_predictions_of_prompt_and_padding(weights, fault, said):
    (found,) = tokens(probe(over_all_ids(eval(weights))))
    assert found.fault == fault
    assert said in found.said


def test_nothing_is_said_of_tokens_where_nothing_acts():
    assert list(tokens(probe(lambda model, batch: torch.zeros(())))) == []
    assert list(scores(probe(lambda model, batch: torch.zeros(())))) == []


def reads(**more):
    """A step whose model is given these instead of an attention mask."""

    def step(model, ref_model, batch):
        logits = model(input_ids=batch["input_ids"], **{n: f(batch) for n, f in more.items()}).logits
        logp = logits[:, batch["prompt_length"] - 1 : -1].log_softmax(-1)
        return by_answer(
            logp.gather(-1, batch["completion_ids"].unsqueeze(-1))[..., 0], batch["completion_mask"]
        )

    return step


def test_padding_and_other_answers_are_seen():
    (found,) = contexts(probe(reads()))
    assert (found.level, found.fault) == ("wrong", "padding")
    assert found.line.text.startswith("logits = model(input_ids")

    def row(model, batch):
        inside = batch["attention_mask"].bool()
        return model(input_ids=batch["input_ids"][inside].unsqueeze(0)).logits.log_softmax(-1)[..., 2].sum()

    (found,) = contexts(probe(row))
    assert (found.level, found.fault) == ("wrong", "packed")

    def later(model, batch):  # the first token of every answer is another one
        ids = batch["input_ids"].clone()
        ids[:, batch["prompt_length"]] = 7
        logits = model(input_ids=ids, attention_mask=batch["attention_mask"]).logits
        return logits.log_softmax(-1)[..., 2].sum()

    (found,) = contexts(probe(later))
    assert found.level == "wrong"
    assert found.said == "The policy scored tokens that are no prefix of the answer."


def test_labels_that_are_not_shifted():
    def step(model, batch):
        logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        logp = logits.log_softmax(-1).gather(-1, batch["input_ids"].unsqueeze(-1)).squeeze(-1)
        return -by_answer(batch["advantages"].unsqueeze(-1) * logp, batch["labels"] != -100)

    found = all_findings(probe(step))
    assert "shifted-tokens" in [f.fault for f in found] or "shifted-mask" in [f.fault for f in found]


def test_log_probs_of_another_token():
    def step(model, batch):
        given = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
        logits = model(**given).logits[:, batch["prompt_length"] - 1 : -1]
        other = batch["completion_ids"] % 4 + 1
        scored = logits.log_softmax(-1)
        logp = scored.gather(-1, other.unsqueeze(-1)).squeeze(-1)
        return -by_answer(batch["advantages"].unsqueeze(-1) * logp, batch["completion_mask"])

    (found,) = scores(probe(step))
    assert found.fault == "shifted-tokens"
    assert found.said.startswith("18 of 18 log-probs are those of another token")
    assert found.line.text.startswith("logp = scored.gather")


@pytest.mark.parametrize(("of", "declared", "wrong"), [(0.7, 1.0, True), (1.0, 0.7, True), (0.7, 0.7, False)])
def test_the_temperature(of, declared, wrong):
    (found,) = scores(probe(step_of(temperatures=(of, of)), temperature=declared))
    assert (found.fault == "temperature") == wrong
    if wrong:
        assert f"temperature is {declared:g} (the sampler's temperature)" in found.said
        assert f"computed at {of:.3g}" in found.said
        assert found.instead.startswith(f"divide the logits by {declared:g} ")


def test_checks_that_mean_nothing_after_a_mistake_are_left_out():
    names = [f.name for f in all_findings(probe(reads()))]
    assert "tokens" not in names
    assert "denominator" not in names
    said = []
    all_findings(probe(lambda model, batch: log_probs(model, batch).sum()), said.append)
    assert said[0] == "<lambda>: contexts"
    assert len(said) == len(CHECKS)
