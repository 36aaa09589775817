"""Guards against a file's code: it never ends, asks a terminal, or prints."""

import json
import os
import subprocess
import sys
import threading
import time

import pytest

from kl_companion.cli import main
from kl_companion.ending import TimedOut, alone, time_limit
from tests.support.data import data

DATA = data(__file__)


K2 = "0.5 * (logp - ref_logp) ** 2"


def audited(tmp_path, body, *more):
    file = tmp_path / "mine.py"
    lines = "".join(f"    {line}\n" for line in body.split("; "))
    file.write_text(f"import os, time, warnings, torch\ndef f(logp, ref_logp):\n{lines}    return {K2}\n")
    return main(["audit", f"{file}:f", "--scale", "1", *more])


@pytest.mark.parametrize(("body", "said"), DATA["what_does_not_return_is_refused_with_its_line"])
def test_what_does_not_return_is_refused_with_its_line(body, said, tmp_path, capsys):
    assert audited(tmp_path, body, "--timeout", "0.5") == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert sys.breakpointhook is sys.__breakpointhook__


def test_what_it_prints_is_not_among_the_data(tmp_path, capsys):
    assert audited(tmp_path, "print('kl is', 1); print(chr(10) * 50)", "--json") == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["name"] == "f"
    assert "kl is 1" in err
    assert "from here on is left out" in err
    assert err.count("kl is 1") < 20


def test_what_a_program_prints_is_not_either(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(f"import os\nos.write(1, b'raw')\ndef f(logp, ref_logp):\n    return {K2}\n")
    command = [sys.executable, "-m", "kl_companion.cli", "audit", f"{file}:f", "--scale", "1", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["name"] == "f"
    assert "raw" in done.stderr


def test_only_the_time_of_the_file_counts():
    scope = {"time": time}
    exec(compile("def mine(s):\n    time.sleep(s)\n", "/theirs.py", "exec"), scope)
    with time_limit(0.5, "/theirs.py"):
        time.sleep(0.8)
        with pytest.raises(TimedOut, match="at last at line 2"):
            scope["mine"](5)


def test_in_another_thread_too():
    with alone(), time_limit(30, __file__):
        pass
    ended = []
    worker = threading.Thread(target=lambda: ended.append(_limited()))
    worker.start()
    worker.join()
    assert ended == [True]
    assert os._exit.__name__ == "_exit"


def _limited():
    with time_limit(30, __file__):
        return True
