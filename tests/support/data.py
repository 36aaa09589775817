"""Cases of a test that are data: the YAML file beside it, `shown.yml` for `test_shown.py`."""

from pathlib import Path
from typing import Any

import yaml


def data(test: str) -> Any:
    """What the YAML file of a test module holds, by the module's ``__file__``."""
    path = Path(test)
    text = path.with_name(f"{path.stem.removeprefix('test_')}.yml").read_text(encoding="utf-8")
    return yaml.safe_load(text)
