"""The notebooks of part 8 on a model and problems that a user brings, and a page's command for them."""

import json
import os
import re
import shlex
import string
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import nbformat
import pandas as pd
import pytest
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient
from papermill.iorw import load_notebook_node
from papermill.parameterize import parameterize_notebook

from kl_companion.llm.checkpoints import FILE
from kl_companion.llm.models import load_model, save_model, tiny_model
from kl_companion.llm.recipe import make_parser
from kl_companion.llm.settings import Settings
from kl_companion.llm.tasks import make_task
from kl_companion.llm.tokenizers import character_tokenizer

SMALL = {"dtype": "bfloat16", "steps": 2, "every": 1, "prompts": 2, "group": 2, "eval_prompts": 2}
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}>{% endif %}"


@pytest.fixture(scope="module")
def brought(tmp_path_factory) -> Path:
    """A folder with a model, a teacher and a file of questions, as a user would have them."""
    folder = tmp_path_factory.mktemp("brought")
    tokenizer = character_tokenizer(string.digits + string.ascii_letters + string.punctuation + " \n")
    tokenizer.chat_template = TEMPLATE
    for seed, name in enumerate(("model", "teacher")):
        save_model(tiny_model(tokenizer, hidden=16, layers=1, context=256, seed=seed), folder / name)
    rows = [{"question": f"What is {i} + 1?", "answer": f"It is one more.\n#### {i + 1}"} for i in range(8)]
    (folder / "problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def options(folder: Path) -> dict[str, object]:
    return {"path": str(folder / "problems.jsonl"), "style": "gsm8k", "max_new_tokens": 6}


@pytest.fixture(scope="module")
def kernel() -> Iterator[KernelManager]:
    """One kernel for the three notebooks: it imports their libraries once."""
    manager = KernelManager(kernel_name="python3")
    yield manager
    manager.shutdown_kernel(now=True)


def run(
    kernel: KernelManager, root: Path, notebook: str, folder: Path, /, **parameters: object
) -> nbformat.NotebookNode:
    """Execute a notebook with these parameters and without the names of the one before."""
    read = load_notebook_node(str(root / "book" / "experiments" / f"{notebook}.ipynb"))
    given = parameterize_notebook(read, parameters)
    given.cells.insert(0, nbformat.v4.new_code_cell("%reset -f"))
    client = NotebookClient(given, km=kernel, resources={"metadata": {"path": str(folder)}})
    done = client.execute()
    client.kc.stop_channels()
    return done


def test_rl_on_a_model_and_problems_of_ones_own(kernel, root, brought, tmp_path):
    run(
        kernel,
        root,
        "llm_rl",
        brought,
        model=str(brought / "model"),
        task="data",
        task_options=options(brought),
        estimator="top_k_reverse_kl",
        k=3,
        output=str(tmp_path),
        **SMALL,
    )
    assert (tmp_path / "run-000" / "checkpoints" / FILE).is_file()
    trained = load_model(str(tmp_path / "run-000" / "model"))
    assert trained.tokenizer.chat_template == TEMPLATE


def test_distillation_of_two_models_of_ones_own(kernel, root, brought, tmp_path):
    run(
        kernel,
        root,
        "llm_distillation",
        brought,
        setup="my pair",
        student=str(brought / "model"),
        teacher=str(brought / "teacher"),
        task="data",
        task_options=options(brought),
        method=["top_k", "sequence_exact"],
        output=str(tmp_path),
        **SMALL,
    )
    (place,) = tmp_path.glob("*/*/seed-0")
    assert sorted(path.name for path in place.iterdir()) == ["run-000", "run-001"]
    assert load_model(str(place / "run-001" / "model")).tokenizer.chat_template == TEMPLATE


def test_a_moving_anchor_on_a_model_of_ones_own(kernel, root, brought, tmp_path):
    done = run(
        kernel,
        root,
        "ema_pg",
        brought,
        model=str(brought / "model"),
        task="data",
        task_options=options(brought),
        name="heads",
        k=[0, 5],
        decay=0.5,
        output=str(tmp_path),
        **SMALL,
    )
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["run-000", "run-001"]
    shown = json.dumps([cell.get("outputs") for cell in done.cells])
    assert "k 0" in shown
    assert "k 5" in shown
    assert (tmp_path / "run-000" / "checkpoints" / FILE).is_file()


def printed(root: Path) -> list[list[str]]:
    """The options of the page's commands: on a laptop, and on a GPU."""
    found = re.findall(
        r"python -m kl_companion\.llm\.recipe (.*?)\n```", (root / "book" / "using.md").read_text(), re.S
    )
    return [shlex.split(command.replace("\\\n", " ")) for command in found]


@pytest.mark.real
def test_the_command_for_a_laptop_runs_as_printed(root, tmp_path):
    command = [sys.executable, "-m", "kl_companion.llm.recipe", *printed(root)[0]]
    environment = {**os.environ, "KL_COMPANION_ROOT": str(root)}
    subprocess.run(command, cwd=tmp_path, env=environment, check=True)
    history = pd.read_csv(tmp_path / "runs/sums/history.csv").set_index("step")
    start, end = history.loc[0], history.loc[20]
    assert start.held_out_kl == 0
    assert 0.1 < start.held_out_reward < 0.4
    assert end.held_out_reward > start.held_out_reward + 0.05
    assert 0.05 < end.held_out_kl < 3
    assert load_model(tmp_path / "runs/sums/model").vocab == 49_152


def test_the_commands_for_real_models_are_ones_that_the_recipe_takes(root):
    laptop, gpu = (make_parser().parse_args(options) for options in printed(root))
    task = make_task(laptop.task, **json.loads(laptop.options))
    assert (task.chat, task.unique, len(task.shots), laptop.lora) == (True, True, 1, 16)
    chosen = gpu
    settings = Settings(**{field.name: getattr(chosen, field.name) for field in fields(Settings)})
    assert (settings.estimator, settings.dtype, settings.prompts * settings.group) == (
        "exact_kl",
        "bfloat16",
        128,
    )
    given = json.loads(chosen.options)
    with pytest.raises(Exception, match=r"gsm8k|datasets|[Hh]ub|offline|connect"):  # no network here
        make_task(chosen.task, **given)
