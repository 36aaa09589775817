"""One thread of one process at a time holds a lock file, and each of the others says once that it waits."""

import threading
from pathlib import Path

from kl_book.file_lock import exclusive_lock


def test_one_after_the_other(tmp_path: Path) -> None:
    inside, most, waited = 0, 0, list[int]()

    def work(number: int) -> None:
        nonlocal inside, most
        with exclusive_lock(tmp_path / "lock", lambda: waited.append(number)):
            inside += 1
            most = max(most, inside)
            ready.wait(0.05)
            inside -= 1

    ready = threading.Event()
    threads = [threading.Thread(target=work, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    assert len(waited) == 3
