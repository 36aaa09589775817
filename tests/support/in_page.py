"""Python as the page has it: run with nothing but the archive, as `python -I -S in_page.py ARCHIVE`.

Reads requests from standard input, a line of JSON each, and prints for each the answer and the picture.
"""

import json
import sys
import tempfile
import zipfile

if __name__ == "__main__":
    folder = tempfile.mkdtemp()
    with zipfile.ZipFile(sys.argv[1]) as archive:
        archive.extractall(folder)
    sys.path.insert(0, folder)
    from kl_book.paste.start import start

    start()
    from kl_book.paste.answer import answer, picture

    for line in sys.stdin:
        steps = []
        found = json.loads(answer(line, steps.append))
        drawn = None if "error" in found else json.loads(picture())
        print(json.dumps({"answer": found, "picture": drawn, "steps": len(steps)}), flush=True)
    loaded = {name.partition(".")[0] for name, module in sys.modules.items() if hasattr(module, "__path__")}
    assert not loaded & {"numpy", "pandas", "mpmath"}, loaded
