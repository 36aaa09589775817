"""Less to load: what the theme carries along and no page needs is left out.

The theme sends its icons twice, as fonts (0.3 MB, woff2) and as a script of 1.5 MB that draws them again; the
fonts stay. Source maps, translations that only a build reads and fonts in an older format go.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

UNUSED = ("scripts/fontawesome.js*", "**/*.map", "vendor/**/*.ttf", "locales", "webpack-macros.html")
UNUSED_MATHJAX = ("mathjax/input/tex/extensions/all-packages.js",)


def trim(app: Any, exception: Exception | None) -> None:
    """Remove what no page needs from the folder of static files."""
    if exception is not None or app.builder.format != "html":
        return
    static = Path(app.outdir) / "_static"
    for pattern in (*UNUSED, *UNUSED_MATHJAX):
        for path in sorted(static.glob(pattern)):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
