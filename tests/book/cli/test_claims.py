"""The verb that checks what the sources say, as a reader types it."""

import pytest

from kl_book.__main__ import main
from kl_book.ledger.claims import CLAIMS, ONE_CASE, Evidence, register
from kl_book.ledger.claims.checks import Claim
from tests.support.claims_table import VERDICT_OF
from tests.support.data import data


@pytest.fixture
def quick(monkeypatch):
    """Checks that cost nothing: one row of each verdict, and everything else holds."""
    some = {id: Evidence(**found) for id, found in data(__file__).items()}
    monkeypatch.setattr(Claim, "check", lambda claim: some.get(claim.id, Evidence(1e-17)))
    return [id for id, row in register().items() if row.source == "tang2025pitfalls"]


def test_one_row_says_everything_that_its_check_found(capsys):
    assert main(["claims", "TM-2.1-control-variate"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0].split() == [
        "TM-2.1-control-variate",
        VERDICT_OF["TM-2.1-control-variate"],
        "tang2025pitfalls,",
        "2.1",
    ]
    for line in (
        "    says: the control variate of the variance-reduced estimate",
        "    error as printed: 2.86 (difference)",
        "    counterexample: policy (3/4, 1/4), reference (1/2, 1/2): the mean of 1 - π/π_ref is -0.250",
        "    corrected: The control variate is π_ref/π - 1",
        "    in practice: ",
        "    agrees with: TM-2.1-varreduced",
        "1 claims: misprint (1)",
    ):
        assert line in out
    assert "hold if" not in out
    assert "\\" not in out


def test_all_rows_of_a_source_and_how_many_there_are_of_each(quick, capsys):
    assert main(["claims", "--source", "tang2025pitfalls"]) == 0
    lines = capsys.readouterr().out.splitlines()
    heads = [line.split()[0] for line in lines if not line.startswith(" ")]
    assert heads[:-2] == quick
    silent = len(set(quick) - set(CLAIMS) - {id for id in quick if register()[id].check})
    assert lines[-2:] == [
        f"{len(quick)} claims: holds ({len(quick) - 4 - silent}), holds only if (1), misprint (1), "
        f"does not hold as worded (1), bibliography (1), not reproducible here ({silent})",
        ONE_CASE,
    ]
    assert f"    needs: {register()['TM-1-code'].needs}" in lines
    assert "    holds if: full support" in lines
    assert "    the source gives this: stated in 2.1" in lines
    assert "    corrected: π is meant" in lines
    assert "    record: of 2020" in lines
    assert lines.count("    error under the condition: 0 (difference)") == 1


def test_failed_leaves_out_what_holds_and_what_cannot_be_checked(quick, capsys):
    assert main(["claims", "--source", "tang2025pitfalls", "--failed"]) == 0
    lines = capsys.readouterr().out.splitlines()
    heads = [line.split()[0] for line in lines if not line.startswith(" ")]
    assert heads[:-2] == ["TM-2.1-varreduced", "TM-2.1-control-variate", "TM-4.2-notoken-cv"]
    assert lines[-2].startswith(f"{len(quick)} claims: ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["TM-eq33"], "unknown claim 'TM-eq33'. Did you mean 'TM-eq3'"),
        (
            ["--source", "tang2025pitfall"],
            "unknown source 'tang2025pitfall'. Did you mean 'tang2025pitfalls'",
        ),
    ],
)
def test_unknown_rows_and_sources_exit_2(arguments, message, capsys):
    assert main(["claims", *arguments]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""


def test_list_names_the_rows(capsys):
    assert main(["list", "claims"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(register())
    assert "tang2025pitfalls, 3, eq (3)" in next(line for line in lines if line.startswith("TM-eq3 "))
