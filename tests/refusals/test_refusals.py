"""Bad input: every case of the catalogue is refused, in words that name what was got and what was wanted."""

import inspect
import os
import re
from collections import Counter

import pytest

from kl_book.names import kl
from kl_companion import DIVERGENCES, ESTIMATORS, OBJECTIVES
from kl_companion.checks import check_choice, unknown_name
from tests.refusals import CASES, Case, Exit, Refusal, parts, run, unclear
from tests.refusals.case import folder
from tests.refusals.catalog import FOLDER, PAGE, cases
from tests.refusals.commands import command

LEAST = 2
COMMANDS = (
    "kl-companion list",
    "kl-companion derive",
    "kl-companion audit",
    "python -m kl_book claims",
    "python -m kl_book table",
)
ALL = [*CASES, *(case for path in sorted(FOLDER.glob("*.yml")) for case in cases(path.stem))]


def public_functions():
    """The public names that take input and compute something; records and registers are no functions."""
    named = {name: getattr(kl, name) for name in kl}
    functions = {name for name, value in named.items() if inspect.isroutine(inspect.unwrap(value))}
    return sorted(functions | {"Rollout", "TopK"})  # these two check what they are given


def faults(case):
    """What is wrong with the answer to a case, one line per fault."""
    refusal = run(case)
    found = unclear(refusal)
    if refusal.exception != case.exception:
        found.append(f"{refusal.exception or 'nothing'} instead of {case.exception}")
    if not re.search(".*".join(map(re.escape, case.names.split(" .. "))), refusal.message, re.DOTALL):
        found.append(f"{case.names!r} is not named in: {refusal.message}")
    return found


@pytest.mark.parametrize("case", ALL, ids=lambda case: f"{case.entry}: {case.kind}")
def test_bad_input_is_refused_and_named(case):
    registers = [*DIVERGENCES], [*ESTIMATORS], {**OBJECTIVES}
    assert faults(case) == []
    assert registers == ([*DIVERGENCES], [*ESTIMATORS], {**OBJECTIVES}), "a case registered a name"


def test_another_answer_than_that_of_the_catalogue_is_noticed():
    def call():
        raise ValueError("beta is 0, expected a number above 0")

    case = Case("kl_loss", "a beta of 0", call, names="beta .. 0")
    assert faults(case) == []
    assert faults(case._replace(exception="TypeError")) == ["ValueError instead of TypeError"]
    assert "'number .. beta' is not named" in faults(case._replace(names="number .. beta"))[0]
    assert "nothing instead of ValueError" in faults(case._replace(call=int))


@pytest.mark.parametrize("name", public_functions())
def test_every_public_function_has_two_cases(name):
    assert sum(case.entry == name for case in CASES) >= LEAST


def test_every_verb_of_the_command_line_has_a_case():
    entries = {case.entry for case in CASES}
    assert set(COMMANDS) <= entries
    assert {"tables.load", "tables.run", "tables.write_rows", "a notebook's parameters"} <= entries


def test_every_file_of_the_page_is_on_it():
    assert {path.stem for path in (FOLDER / "page").iterdir()} == {*PAGE.split()}


def test_cases_are_told_apart():
    assert max(Counter((case.entry, case.kind) for case in ALL).values()) == 1


def test_each_input_of_a_task_and_of_pretraining_has_its_own_message():
    own = [run(c) for c in CASES if c.entry in ("llm.tasks.make_task", "llm.pretraining.pretrained")]
    assert max(Counter(r.message for r in own).values()) == 1
    assert not [r.kind for r in own if "missing a required argument" in r.message]


GOOD = Refusal("k3", "a list", "ValueError", "logp is a list, expected a torch.Tensor")


@pytest.mark.parametrize(
    ("message", "fault"),
    [
        ("", "0 characters"),
        ("expected a number", "what was got is not named"),
        ("beta is 'small', which is a text and no number", "what was wanted is not named"),
        ("beta is 'small',\nexpected a number", "more than one paragraph"),
        (f"beta is {'9' * 500}, expected a number", "527 characters"),
        ("'list' object has no attribute 'shape', expected it", "a message of another library"),
        ("/home/me/book holds 3 files, expected none", "a path of this machine"),
    ],
)
def test_an_unclear_message_is_noticed(message, fault):
    assert unclear(GOOD) == []
    assert any(fault in found for found in unclear(GOOD._replace(message=message)))


def test_what_is_not_refused_is_noticed():
    answered = [
        run(Case("k3", "good input", lambda: 1)),
        run(Case("audit", "a verdict", lambda: Exit(1, "no"))),
    ]
    assert [r.exception for r in answered] == ["", ""]
    assert all("nothing was refused" in unclear(r) for r in answered)


def test_a_case_works_in_a_folder_that_is_gone_afterwards_and_is_not_named():
    seen = []

    def call():
        seen.append(folder())
        (folder() / "file.py").write_text("")
        raise ValueError(f"{folder()}/file.py holds nothing, expected a function")

    answer = run(Case("audit", "an empty file", call))
    assert answer == ("audit", "an empty file", "ValueError", "file.py holds nothing, expected a function")
    assert not seen[0].exists()
    with pytest.raises(LookupError):
        folder()


def test_a_message_is_cut_where_the_wanted_begins():
    assert parts(GOOD.message) == ("logp is a list, ", "expected a torch.Tensor")
    assert parts(str(unknown_name("level", "tokens", ["token"]))) == (
        "unknown level 'tokens'. ",
        "Did you mean 'token'? Known: token",
    )
    assert parts("nothing of the kind") == ("nothing of the kind", "")


def test_a_long_list_of_names_is_cut_to_the_nearest():
    names = [f"name_{i:03}" for i in range(100)]
    message = str(unknown_name("row", "name_01", names))
    assert message.startswith("unknown row 'name_01'. Did you mean 'name_091'? Known: name_041, ")
    assert message.endswith(" and 94 others")
    with pytest.raises(ValueError, match=r"^level is a list, expected a name\. Known: token$"):
        check_choice("level", ["token"], ["token"])


def test_a_case_leaves_the_environment_as_it_was(monkeypatch, tmp_path):
    for before in (None, str(tmp_path)):
        if before is None:
            monkeypatch.delenv("KL_COMPANION_ROOT", raising=False)
        else:
            monkeypatch.setenv("KL_COMPANION_ROOT", before)
        run(Case("python -m kl_book table", "no project around", lambda: command("table", "show", "toy")))
        assert os.environ.get("KL_COMPANION_ROOT") == before
