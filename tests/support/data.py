"""Cases of a test that are data: a YAML file beside it, by default `shown.yml` for `test_shown.py`."""

from pathlib import Path
from typing import Any

import yaml


def data(test: str, name: str = "") -> Any:
    """What a YAML file beside a test module holds, by the module's ``__file__``, and by another name."""
    path = Path(test)
    name = name or path.stem.removeprefix("test_")
    return yaml.safe_load(path.with_name(f"{name}.yml").read_text(encoding="utf-8"))
