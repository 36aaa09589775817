"""Teachers and students: what each set-up promises, models that the user names, and where a KL sits."""

import pytest
import torch

from kl_book.lab.pairs import SETUPS, by_style, distillation_pair, loaded_pair
from kl_companion.llm.measuring import sequence_kl
from kl_companion.llm.models import frozen_copy, save_model, tiny_model
from kl_companion.llm.setups import SetUp
from kl_companion.llm.tasks import make_task
from kl_companion.llm.tokenizers import character_tokenizer

EMBEDDED = [name for name, setup in SETUPS.items() if isinstance(setup, SetUp)]
QUICK = {"steps": 1, "batch": 4}


def logits_at_start(lm, prompt=""):
    tokens = [lm.tokenizer.bos_token_id, *lm.tokenizer.convert_tokens_to_ids(list(prompt))]
    with torch.no_grad():
        return lm.model(input_ids=torch.tensor([tokens])).logits[0, -1].double()


@pytest.mark.parametrize("name", EMBEDDED)
def test_a_pair_shares_its_vocabulary_and_only_the_student_learns(name, model_cache):
    pair = distillation_pair(name, recipe=QUICK)
    assert pair.student.tokenizer.get_vocab() == pair.teacher.tokenizer.get_vocab()
    assert all(p.requires_grad for p in pair.student.model.parameters())
    assert not any(p.requires_grad for p in pair.teacher.model.parameters())
    assert pair.task.name == SETUPS[name].task
    assert pair.task.ends == (name == "end of sequence")
    sizes = [sum(p.numel() for p in lm.model.parameters()) for lm in pair[:2]]
    assert (sizes[0] < sizes[1] / 10) == (name == "capacity gap")


def test_a_seed_is_another_world(model_cache):
    pairs = [distillation_pair("capable student", seed=seed, recipe=QUICK) for seed in (0, 1)]
    tables = [pair.task.law.table for pair in pairs]
    assert not torch.equal(*tables)
    first = [logits_at_start(lm) for pair in pairs for lm in pair[:2]]
    assert all(not torch.equal(a, b) for i, a in enumerate(first) for b in first[:i])


def test_the_student_speaks_another_language_than_the_teacher(model_cache):
    """Each knows its own: the mean log-prob that it gives to texts is higher than the other's."""
    pair = distillation_pair("capable student", recipe={"steps": 40, "batch": 64})
    options = SETUPS["capable student"].options
    for language, better, worse in ((0, pair.teacher, pair.student), (1, pair.student, pair.teacher)):
        task = make_task("markov", **options, seed=language)
        texts = [text for _, text in task.corpus(64, torch.Generator().manual_seed(5))]
        assert score(better, texts) > score(worse, texts) + 2


def score(lm, texts):
    ids = [[lm.tokenizer.bos_token_id, *lm.tokenizer.convert_tokens_to_ids(list(text))] for text in texts]
    tokens = torch.tensor(ids)
    with torch.no_grad():
        logp = lm.model(input_ids=tokens[:, :-1]).logits.log_softmax(-1)
    return logp.gather(-1, tokens[:, 1:, None]).sum((1, 2)).mean().item()


def test_the_confident_student_is_twice_as_sharp(model_cache, monkeypatch):
    sharp = distillation_pair("confident mismatch", recipe=QUICK).student
    monkeypatch.setitem(SETUPS, "confident mismatch", SETUPS["confident mismatch"]._replace(sharpness=1.0))
    plain = distillation_pair("confident mismatch", recipe=QUICK).student
    torch.testing.assert_close(logits_at_start(sharp), 2 * logits_at_start(plain))


def thirty_blocks(name, **_):
    """In the place of a real model, a small one that can be rounded and cut."""
    assert name == "smollm2"
    return tiny_model(character_tokenizer("abc"), hidden=16, layers=30)


@pytest.mark.parametrize("name", [name for name in SETUPS if name not in EMBEDDED])
def test_a_real_student_is_its_teacher_made_smaller(name, monkeypatch):
    monkeypatch.setattr("kl_book.lab.pairs.load_model", thirty_blocks)
    student, teacher, task = distillation_pair(name, seed=3)
    assert all(p.requires_grad for p in student.model.parameters())
    assert not any(p.requires_grad for p in teacher.model.parameters())
    assert not torch.equal(logits_at_start(student), logits_at_start(teacher))
    blocks = student.model.model.layers
    assert len(blocks) == (27 if "27" in name else 30)
    if name == "four bits":
        weight = blocks[0].mlp.up_proj.weight
        assert max(len(row.unique()) for row in weight) <= 15
    assert (task.name, task.reward, task.max_new_tokens) == ("questions", None, 32)
    with pytest.raises(ValueError, match=r"recipe is \{'steps': 1.* expected none: smollm2 is pretrained"):
        distillation_pair(name, recipe=QUICK)


@pytest.mark.real
def test_the_real_pair_starts_far_apart():
    student, teacher, task = distillation_pair("four bits")
    seed = torch.Generator().manual_seed(0)
    found = sequence_kl(student, teacher, task, task.draw(4, seed), generator=seed)
    assert 0.5 < found.per_token < 5


def test_two_models_of_the_user(tiny, tmp_path):
    save_model(tiny, tmp_path / "teacher")
    save_model(frozen_copy(tiny), tmp_path / "student")
    pair = loaded_pair(str(tmp_path / "student"), str(tmp_path / "teacher"), "sort", digits=3)
    assert pair.task.name == "sort"
    assert pair.student.model is not pair.teacher.model
    assert not any(p.requires_grad for p in pair.teacher.model.parameters())
    assert all(p.requires_grad for p in pair.student.model.parameters())
    save_model(tiny_model(character_tokenizer("abc"), hidden=16), tmp_path / "other")
    with pytest.raises(ValueError, match="token"):
        loaded_pair(str(tmp_path / "student"), str(tmp_path / "other"), "sort", digits=3)


@pytest.fixture(scope="module")
def two():
    """Two random models that say a style and one letter: every KL in it is a finite sum."""
    task = make_task("two_styles", length=1, letters=2)
    tokenizer = character_tokenizer(task.alphabet)
    return [tiny_model(tokenizer, hidden=16, layers=1, seed=seed) for seed in (1, 2)], task


def test_a_kl_by_style_against_the_whole_distribution(two):
    models, task = two
    examples = task.draw(5, torch.Generator().manual_seed(0))
    found = by_style(*models, task, examples, seed=3)

    def kl(prompt):
        logp, ref_logp = (logits_at_start(lm, prompt).log_softmax(-1) for lm in models)
        return (logp.exp() * (logp - ref_logp)).sum()

    styles = models[0].tokenizer.convert_tokens_to_ids(["A", "B"])
    first = torch.stack([logits_at_start(models[0], e.prompt).softmax(-1) for e in examples]).mean(0)
    expected = {
        "style_a": first[styles[0]],
        "style_b": first[styles[1]],
        "kl_choice": torch.stack([kl(e.prompt) for e in examples]).mean(),
        "kl_after_a": torch.stack([kl(e.prompt + "A") for e in examples]).mean(),
        "kl_after_b": torch.stack([kl(e.prompt + "B") for e in examples]).mean(),
    }
    assert found == pytest.approx({k: v.item() for k, v in expected.items()}, rel=1e-5)
    assert len({round(x, 4) for x in found.values()}) == 5


def test_other_tasks_have_no_styles(two):
    models, _ = two
    assert by_style(*models, make_task("markov"), []) == {}
