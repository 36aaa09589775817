"""What a run shows: one bar on stdout with the latest numbers, or nothing."""

from kl_book.lab.progress import Progress

RECORDS = [{"step": 0, "kl": 0.5}, {"step": 1, "reward": 0.25}, {"step": 3, "kl": 1 / 3, "loss": 7.0}]


def shown(capfd, **options):
    with Progress(3, "sort", ["kl", "reward"], **options) as progress:
        for record in RECORDS:
            progress(record)
    return capfd.readouterr()


def test_a_bar_with_the_latest_numbers_on_stdout(capfd):
    out, err = shown(capfd)
    last = out.split("\r")[-1]
    assert last.startswith("sort: 100%")
    assert "3/3" in last
    assert "kl 0.3333, reward 0.25]" in last
    assert err == ""


def test_quiet_is_quiet(capfd):
    assert shown(capfd, quiet=True) == ("", "")
