"""Two pieces of work and a table of both, done with care, or careless in the one way that is asked for.

With `KL_PAUSE` it stays in the middle of its work, and the file of that name says that it is there.
"""

import os
import subprocess
import sys
import time
from pathlib import Path


def here() -> None:
    """The middle, where it may be killed."""
    if pause := os.environ.get("KL_PAUSE"):
        Path(pause).touch()
        time.sleep(60)


def write(name: str, text: str) -> None:
    """Write a file as a whole or not at all."""
    part = Path(f"{name}.part")
    part.write_text(text)
    part.replace(name)


def work(fault: str) -> None:
    """Do what is not done yet."""
    for piece in "ab":
        if fault == "repeats" or not Path(piece).is_file():
            with Path("log").open("a") as log:
                log.write(f"{piece}\n")
            write(piece, "1")
    own = Path(f"{os.getpid()}.part")
    if fault == "leaves":
        own.touch()
    if fault == "orphan" and "KL_PAUSE" in os.environ:
        subprocess.Popen(["sleep", "60"])
    if fault == "gives up" and Path("under_way").exists():
        sys.exit("it is under way")
    if fault == "adds":
        write("under_way", "1\n" if Path("under_way").exists() else "")
    else:
        Path("under_way").touch()
    if fault == "in place":
        with Path("table.csv").open("w") as table:
            table.write("1\n")
            table.flush()
            here()
            table.write("1\n")
    else:
        here()
        write("table.csv", "1\n1\n" + (Path("under_way").read_text() if fault == "adds" else ""))
    Path("under_way").unlink()
    own.unlink(missing_ok=True)


if __name__ == "__main__":
    try:
        work(sys.argv[1])
    except OSError as error:
        if sys.argv[1] == "raises":
            raise
        sys.exit(str(error))
