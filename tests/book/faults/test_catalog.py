"""The catalog: every mistake is found on its line and nothing beside it, what is sound is left alone."""

import inspect
from typing import Any

import pytest

from kl_book.faults import CASES, examined
from kl_book.faults.catalog import found
from kl_companion.monitor.doctor import FAULTS
from kl_companion.monitor.doctor.diagnosis import Diagnosis
from kl_companion.monitor.doctor.findings import DoctorFinding
from kl_companion.monitor.doctor.tracing import Line

SOUND = [name for name, case in CASES.items() if not case.fault]
FAULTY = [name for name, case in CASES.items() if case.fault]


def marked_line(step: Any) -> str:
    """The only line of a step's source that ends in the mark."""
    (line,) = [x for x in inspect.getsource(step).splitlines() if x.endswith("# fault")]
    return line.strip()


@pytest.mark.parametrize("name", FAULTY)
def test_a_mistake_is_found_on_its_line_and_nothing_else(name: str) -> None:
    case = CASES[name]
    diagnosis = examined(case)
    (said,) = [f for f in diagnosis.findings if f.level != "fine"]
    assert said.fault == case.fault
    assert said.line is not None
    assert said.line.text == marked_line(case.make())
    assert said.instead  # what to write there
    assert found(case, diagnosis)


@pytest.mark.parametrize("name", SOUND)
def test_what_is_sound_gives_no_alarm(name: str) -> None:
    case = CASES[name]
    diagnosis = examined(case)
    told = ["reference"] if name == "without_kl" else []  # there is none, which one may want to know
    assert [f.name for f in diagnosis.findings if f.level != "fine"] == told
    assert "# fault" not in inspect.getsource(case.make())
    assert found(case, diagnosis)


def test_the_catalog_holds_most_mistakes_that_the_doctor_knows_by_name() -> None:
    faults = {case.fault for case in CASES.values()} - {""}
    assert faults <= set(FAULTS)
    assert len(faults) >= 12
    assert len(SOUND) >= 10


def test_what_counts_as_found() -> None:
    case = CASES["token_mean"]
    fine = DoctorFinding("mask", "fine", "All count.")
    wrong = DoctorFinding("denominator", "wrong", "Twice.", None, "x  # fault", "denominator")
    assert found(case, Diagnosis("a", (fine, wrong)))
    assert not found(case, Diagnosis("a", (fine,)))
    assert not found(case, Diagnosis("a", (wrong._replace(fault="no-mask"),)))
    assert not found(case, Diagnosis("a", (wrong, wrong._replace(fault="no-mask"))))
    assert not found(case, Diagnosis("a", (wrong._replace(instead=""),)))  # neither a line nor a text
    here = Line(__file__, 1)
    assert not found(case, Diagnosis("a", (wrong._replace(instead="", line=here),)))
    sound = CASES["sound"]
    assert found(sound, Diagnosis("a", (fine, wrong._replace(level="attention"))))
    assert not found(sound, Diagnosis("a", (wrong,)))
