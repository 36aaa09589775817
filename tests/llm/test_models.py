"""Models and tokenizers: what is saved is what is loaded, and every mistake has its sentence."""

from __future__ import annotations

import copy
import errno
import os
import sys
from pathlib import Path

import pytest
import torch

from kl_companion.llm import models
from kl_companion.llm.models import (
    LanguageModel,
    chat_prompts,
    frozen_copy,
    load_model,
    same_vocabulary,
    save_model,
    tiny_model,
)
from kl_companion.llm.optional import llm_extra
from kl_companion.llm.tokenizers import character_tokenizer, encode
from tests.support.data import data

DATA = data(__file__)


IDS = torch.tensor([[1, 5, 9, 3, 13, 4], [1, 3, 3, 12, 13, 7]])


@pytest.fixture(scope="module")
def saved(tiny: LanguageModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "model"
    save_model(tiny, folder)
    return folder


@pytest.fixture
def broken(saved: Path, tmp_path: Path) -> Path:
    """A copy of a saved model for a test to break."""
    folder = tmp_path / "broken"
    folder.mkdir()
    for path in saved.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def logits(lm: LanguageModel) -> torch.Tensor:
    with torch.no_grad():
        return lm.model(IDS).logits


def test_one_token_per_character() -> None:
    tokenizer = character_tokenizer("ab <eos>\né=")
    assert tokenizer.convert_ids_to_tokens([0, 1, 2]) == ["<pad>", "<bos>", "<eos>"]
    assert (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1, 2)
    assert encode(tokenizer, ["b a", "", "\n\né="]) == [[4, 5, 3], [], [11, 11, 12, 13]]
    assert encode(tokenizer, ["<eos>"]) == [[6, 7, 8, 9, 10]]  # five characters, not the special token
    assert encode(tokenizer, []) == []
    assert tokenizer.decode([1, 4, 5, 3, 11, 2, 0], skip_special_tokens=True) == "b a\n"


def test_a_saved_tokenizer_is_the_same(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = character_tokenizer("ab <eos>\n")
    tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert again.get_vocab() == tokenizer.get_vocab()
    assert encode(again, ["ba<eos>\n "]) == encode(tokenizer, ["ba<eos>\n "])
    with pytest.raises(ValueError, match="does not know the character 'x'"):
        encode(again, ["abx"])


def test_a_token_for_the_unknown_does_not_hide_an_unknown_character() -> None:
    import tokenizers
    import transformers

    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<unk>": 0, "a": 1, "b": 2}, unk_token="<unk>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>")
    with pytest.raises(ValueError, match="does not know the character 'c' in 'abc'"):
        encode(tokenizer, ["ab", "abc"])
    assert encode(tokenizer, ["a<unk>b"]) == [[1, 0, 2]]  # written on purpose


def test_a_tiny_model_depends_on_its_seed_only(tiny: LanguageModel) -> None:
    before = torch.get_rng_state()
    same, other = (tiny_model(tiny.tokenizer, hidden=32, seed=seed) for seed in (0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(logits(same), logits(tiny))
    assert not torch.equal(logits(other), logits(tiny))
    assert tiny.vocab == len(tiny.tokenizer) == logits(tiny).shape[-1] == 14
    assert tiny.device == torch.device("cpu")
    assert not tiny.model.training
    assert tiny.model.lm_head.weight is tiny.model.model.embed_tokens.weight


def slope_error(lm: LanguageModel) -> float:
    """Relative difference of autograd and a central difference, along the weights of the first block."""
    weight = lm.model.model.layers[0].self_attn.q_proj.weight
    towards = torch.randn(weight.shape, generator=torch.Generator().manual_seed(0), dtype=weight.dtype)

    def value() -> torch.Tensor:
        return lm.model(IDS).logits.log_softmax(-1)[..., 5].sum()

    (gradient,) = torch.autograd.grad(value(), weight)
    ends = []
    with torch.no_grad():
        for sign in (1, -2):
            weight += sign * 1e-5 * towards
            ends.append(value())
        weight += 1e-5 * towards
    exact = (gradient * towards).sum()
    return abs((ends[0] - ends[1]) / 2e-5 / exact - 1).item()


def test_float64_is_float64_throughout(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert slope_error(load_model(saved, dtype="float64")) < 1e-7
    monkeypatch.setattr(models, "_ROUNDING", ())
    assert slope_error(load_model(saved, dtype="float64")) > 1e-5  # the library's own normalization


def test_a_float64_model_is_the_same_model(tiny: LanguageModel, tmp_path: Path) -> None:
    exact = tiny_model(tiny.tokenizer, hidden=32, dtype=torch.float64)
    torch.testing.assert_close(logits(exact).float(), logits(tiny), rtol=1e-5, atol=1e-5)
    save_model(exact, tmp_path / "exact")
    assert torch.equal(logits(load_model(tmp_path / "exact", dtype="float64")), logits(exact))


def test_what_is_saved_is_what_is_loaded(tiny: LanguageModel, saved: Path, capfd: object) -> None:
    loaded = load_model(saved)
    assert torch.equal(logits(loaded), logits(tiny))
    assert not loaded.model.training
    same_vocabulary(loaded, tiny)
    assert encode(loaded.tokenizer, ["12=3"]) == encode(tiny.tokenizer, ["12=3"])
    assert load_model(str(saved), dtype="bfloat16").model.dtype == torch.bfloat16
    assert capfd.readouterr().err == ""  # no progress bars
    assert not [path for path in saved.iterdir() if path.suffix in (".bin", ".pt", ".pkl")]


def test_any_causal_language_model_loads_without_dropout(tiny: LanguageModel, tmp_path: Path) -> None:
    import transformers

    config = transformers.GPT2Config(vocab_size=14, n_embd=16, n_layer=1, n_head=2, n_positions=32)
    config.attn_pdrop = config.embd_pdrop = config.resid_pdrop = 0.5
    model = transformers.GPT2LMHeadModel(config)
    tokenizer = copy.deepcopy(tiny.tokenizer)
    tokenizer.pad_token = None
    save_model(LanguageModel(model, tokenizer), tmp_path)
    loaded = load_model(tmp_path)
    assert loaded.tokenizer.pad_token_id == loaded.tokenizer.eos_token_id == 2
    before = logits(loaded)
    loaded.model.train()
    assert torch.equal(logits(loaded), before)


def test_saving_replaces_a_model_and_nothing_else(tiny: LanguageModel, broken: Path, tmp_path: Path) -> None:
    other = tiny_model(tiny.tokenizer, hidden=32, seed=3)
    save_model(other, broken)
    assert torch.equal(logits(load_model(broken)), logits(other))
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.tex").write_text("years")
    with pytest.raises(ValueError, match=r"holds files but no config.json: give an empty folder"):
        save_model(tiny, mine)
    with pytest.raises(ValueError, match=r"thesis.tex is a file, expected a folder"):
        save_model(tiny, mine / "thesis.tex")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broken", "mine"]


def test_a_failed_save_leaves_the_old_model(
    tiny: LanguageModel, broken: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tiny.tokenizer, "save_pretrained", full)
    with pytest.raises(OSError, match="No space left"):
        save_model(tiny_model(tiny.tokenizer, hidden=32, seed=3), broken)
    assert torch.equal(logits(load_model(broken)), logits(tiny))
    assert [path.name for path in broken.parent.iterdir()] == ["broken"]


@pytest.mark.skipif(sys.platform == "win32", reason="no such limit")
def test_weights_for_which_there_is_no_space(tiny: LanguageModel, broken: Path) -> None:
    import resource

    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (9000, limit[1]))
    try:
        with pytest.raises(OSError, match=r"broken could not be written: .*File too large"):
            save_model(tiny_model(tiny.tokenizer, hidden=32, seed=3), broken)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert torch.equal(logits(load_model(broken)), logits(tiny))
    assert [path.name for path in broken.parent.iterdir()] == ["broken"]


def test_a_save_that_fails_at_the_last_moment_puts_the_old_model_back(
    tiny: LanguageModel, broken: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = os.replace

    def refused(source: Path, target: Path) -> None:
        if Path(source).name == "new":
            raise PermissionError(errno.EACCES, "Permission denied")
        replace(source, target)

    monkeypatch.setattr(models.os, "replace", refused)
    with pytest.raises(PermissionError):
        save_model(tiny_model(tiny.tokenizer, hidden=32, seed=3), broken)
    assert torch.equal(logits(load_model(broken)), logits(tiny))


@pytest.mark.parametrize(("options", "message"), DATA["unknown_places_and_types"])
def test_unknown_places_and_types(options: dict[str, str], message: str, saved: Path) -> None:
    with pytest.raises(ValueError, match=message):
        load_model(saved, **options)


def test_names_that_lead_nowhere(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'nobody/nothing' is no folder here, and no model"):
        load_model("nobody/nothing")


def cut(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])


def drop_a_weight(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def pickle_only(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def without(pattern: str) -> object:
    def remove(folder: Path) -> None:
        for path in folder.glob(pattern):
            path.unlink()

    return remove


def long_vocabulary(folder: Path) -> None:
    character_tokenizer("0123456789=abc").save_pretrained(folder)


def encoder(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "t5"}')


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (without("tokenizer*"), "holds no tokenizer"),
        (without("config.json"), r"holds no config\.json"),
        (without("*.safetensors"), r"holds no weights: expected \*\.safetensors"),
        (pickle_only, r"a pickle only \(pytorch_model\.bin\), which may run code .* use_safetensors=False"),
        (cut, "cannot load a causal language model from .*: Error while deserializing"),
        (drop_a_weight, r"holds no weights for model\.norm\.weight: they would stay random"),
        (long_vocabulary, "has 14 logits, fewer than the 17 tokens of its tokenizer"),
        (encoder, "cannot load a causal language model from"),
    ],
)
def test_folders_that_hold_no_model(damage: object, message: str, broken: Path) -> None:
    damage(broken)
    with pytest.raises(ValueError, match=message):
        load_model(broken)


def test_a_frozen_copy_stays_as_it_was(tiny: LanguageModel) -> None:
    policy = tiny_model(tiny.tokenizer, hidden=32)
    policy.model(IDS).logits.logsumexp(-1).sum().backward()
    frozen, gradient = frozen_copy(policy), policy.model.model.norm.weight.grad
    assert gradient is not None
    assert all(p.grad is None and not p.requires_grad for p in frozen.model.parameters())
    assert frozen.model.lm_head.weight is frozen.model.model.embed_tokens.weight
    torch.optim.SGD(policy.model.parameters(), lr=0.1).step()
    assert torch.equal(logits(frozen), logits(tiny))
    assert not torch.equal(logits(policy), logits(tiny))
    assert all(p.requires_grad for p in policy.model.parameters())


def test_chat_prompts_need_a_template(tiny: LanguageModel) -> None:
    tokenizer = copy.deepcopy(tiny.tokenizer)
    tokenizer.chat_template = (
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    assert chat_prompts(tokenizer, ["a", "b"]) == ["[user]a[assistant]", "[user]b[assistant]"]
    assert chat_prompts(tokenizer, ["a"], system="s") == ["[system]s[user]a[assistant]"]
    shown = chat_prompts(tokenizer, ["a", "b"], shots=[("1", "2"), ("3", "4")])
    assert shown == [f"[user]1[assistant]2[user]3[assistant]4[user]{x}[assistant]" for x in "ab"]


def test_a_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match=r"language models need transformers, .*'kl-companion\[llm\]'"):
        llm_extra("transformers")
    with pytest.raises(ImportError, match="language models need tokenizers_of_nobody"):
        llm_extra("tokenizers_of_nobody.deep")
