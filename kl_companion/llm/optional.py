"""Import a module that the extra `llm` brings; a missing one raises an ImportError naming the extra."""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any


def llm_extra(module: str) -> Any:
    """Import a module that the extra `llm` brings, such as `transformers`.

    Raises:
        ImportError: it is not installed; the message names the extra.
    """
    try:
        with warnings.catch_warnings():
            # tqdm, which these modules import, misses widgets in a notebook; nothing here uses them
            warnings.filterwarnings("ignore", message="IProgress not found")
            return import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != module.partition(".")[0]:
            raise
        message = f"language models need {module}, which is not installed: pip install 'kl-companion[llm]'"
        raise ImportError(message, name=module) from None
