"""Python as the page has it: run with nothing but the archive, as `python -I -S in_page.py ARCHIVE`.

Reads requests from standard input, a line of JSON each, and prints for each the answer and the picture. A
request with ``log``, bytes in base64, is one for a report, and one with ``before`` for a cell: their answers
are printed alone.
"""

import base64
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
    from kl_book.paste.cell_answer import cell_answer
    from kl_book.paste.log_answer import log_answer

    for line in sys.stdin:
        request = json.loads(line)
        if "log" in request:
            data = base64.b64decode(request.pop("log"))
            print(log_answer(json.dumps(request), memoryview(data)), flush=True)
            continue
        if "before" in request:
            print(cell_answer(line), flush=True)
            continue
        steps = []
        found = json.loads(answer(line, steps.append))
        drawn = None if "error" in found else json.loads(picture())
        print(json.dumps({"answer": found, "picture": drawn, "steps": len(steps)}), flush=True)
    loaded = {name.partition(".")[0] for name, module in sys.modules.items() if hasattr(module, "__path__")}
    assert not loaded & {"numpy", "pandas", "mpmath"}, loaded
