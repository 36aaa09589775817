"""The manifest of a result table: read, checked completely, and resolved for a profile.

```yaml
title: EMA anchor against fixed anchor
notebook: book/experiments/ema_pg.ipynb
grid: {anchor: [fixed, ema], seed: [0, 1, 2]}     # one run of the notebook per point; absent: one run
parameters: {beta: 0.02}                          # passed as they stand
profiles: {smoke: {seed: [0], beta: 0.1}}         # smoke, cpu, gpu, gpu_short: override axes or parameters
columns: {anchor: str, seed: int, kl: {type: float, digits: 4, missing: true}}
key: [anchor, seed]
cost: seconds                                     # seconds, minutes or hours
deterministic: true                               # false for timings
minutes: 6                                        # may be absent: a guess, per point, with two at a time
alone: true                                       # may be absent: one point at a time, for timings
needs: smollm2                                    # may be absent: a model of kl_companion.llm.packaged
like: llm_rl                                      # may be absent: the rest is as in that table
tolerance: {within: 1.0e-6, because: ...}         # may be absent: on another processor
```

Title, grid, parameters, profiles, `minutes`, `alone`, `needs` and `tolerance` are never taken from the table
that one is `like`.

Whatever is wrong is said before anything runs. In particular every name of the grid and of the parameters
must be assigned in the notebook's cell tagged `parameters`: papermill itself would only warn.
"""

from __future__ import annotations

import ast
import hashlib
import itertools
import json
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from kl_book.tables.project import book_extra, known_table, project_root, unknown
from kl_book.tables.rows import Cell, Column

PROFILES = ("smoke", "cpu", "gpu", "gpu_short")
ON_GPU = ("gpu", "gpu_short")  # profiles that need a CUDA device, and their own entry under `profiles`
KEPT = ("cpu", "gpu")  # profiles whose tables are in `tables/`
COSTS = ("seconds", "minutes", "hours")
TYPES = ("str", "int", "float", "bool")
REQUIRED = ("title", "notebook", "columns", "key", "cost", "deterministic")
OPTIONAL = ("grid", "parameters", "profiles", "needs", "minutes", "alone", "tolerance")
OWN = ("title", *OPTIONAL)  # what `like` does not take over
LIKE = "like"
OUT = "out"


class Manifest(NamedTuple):
    """A checked manifest; `notebook` is an absolute path, `columns` are in the order of the table."""

    name: str
    root: Path
    title: str
    notebook: Path
    grid: dict[str, list[Cell]]
    parameters: dict[str, Any]
    profiles: dict[str, dict[str, Any]]
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    cost: str
    deterministic: bool
    minutes: float | None = None
    alone: bool = False
    needs: str | None = None
    like: str | None = None
    tolerance: float = 0.0

    @property
    def folder(self) -> Path:
        """The table's folder, `tables/<name>`."""
        return self.root / "tables" / self.name


class ProfileSettings(NamedTuple):
    """What a profile makes of a manifest."""

    grid: dict[str, list[Cell]]
    parameters: dict[str, Any]


def read_manifest(name: str) -> Manifest:
    """Read and check `tables/<name>/manifest.yml`.

    Raises:
        ValueError: no such table, anything in the manifest that is not as the module's text says, or a folder
            or notebook that is a link out of the project.
        ImportError: PyYAML is not installed.
    """
    root = project_root()
    data = _data(root, name)
    try:
        return _manifest(name, root, _completed(root, data), _like(data))
    except ValueError as error:
        raise ValueError(f"tables/{name}/manifest.yml: {error}") from None


def settings(manifest: Manifest, profile: str) -> ProfileSettings:
    """The grid and the parameters of a profile.

    Raises:
        ValueError: an unknown profile, or one of a GPU where the manifest has none.
    """
    if profile not in PROFILES:
        raise unknown("profile", profile, PROFILES)
    if profile in ON_GPU and profile not in manifest.profiles:
        raise ValueError(f"table {manifest.name!r} has no profile {profile!r}, expected one under `profiles`")
    changes = manifest.profiles.get(profile, {})
    grid = {name: _listed(changes.get(name, values)) for name, values in manifest.grid.items()}
    other = {name: value for name, value in changes.items() if name not in grid}
    return ProfileSettings(grid, {**manifest.parameters, **other})


def points(grid: Mapping[str, list[Cell]]) -> list[dict[str, Cell]]:
    """The points of a grid, the last axis running fastest; a grid without axes has one point."""
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def manifest_digest(manifest: Manifest, profile: str) -> str:
    """sha256 of what the manifest says about the table of a profile: no title, layout or other profile."""
    grid, parameters = settings(manifest, profile)
    notebook = manifest.notebook.relative_to(manifest.root).as_posix()
    content = [notebook, grid, parameters, manifest.columns, manifest.key]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


# -- checks of the parts -------------------------------------------------------------------------------------


def _data(root: Path, name: str) -> Any:
    """What a table's manifest says."""
    path = root / "tables" / known_table(name) / "manifest.yml"
    if not path.parent.resolve().is_relative_to(root / "tables"):  # the table would be written there
        raise ValueError(f"tables/{name} is a link to {path.parent.resolve()}, expected a folder of tables/")
    yaml = book_extra("yaml")
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"tables/{name}/manifest.yml is not YAML: {error}") from None


def _like(data: Any) -> Any:
    return data.get(LIKE) if isinstance(data, dict) else None


def _completed(root: Path, data: Any) -> Any:
    """The manifest with what it takes from the one that it is `like`, as if that were written out."""
    if (like := _like(data)) is None:
        return data
    other = _mapping(f"the manifest of {like}", _data(root, like))
    if LIKE in other:
        raise ValueError(f"{LIKE} is {like!r}, which is like {other[LIKE]!r}, expected a table like no other")
    taken = {key: value for key, value in other.items() if key not in OWN}
    return {**taken, **{key: value for key, value in data.items() if key != LIKE}}


def _manifest(name: str, root: Path, data: Any, like: str | None) -> Manifest:
    data = _mapping("the manifest", data)
    for key in data:
        if key not in REQUIRED + OPTIONAL:
            raise unknown("key", key, (*REQUIRED, *OPTIONAL, LIKE))
    if absent := [key for key in REQUIRED if key not in data]:
        raise ValueError(f"{', '.join(absent)} missing, expected {', '.join(REQUIRED)}")
    if data["cost"] not in COSTS:
        raise unknown("cost", data["cost"], COSTS)
    for name_of_bool in ("deterministic", "alone"):
        if not isinstance(said := data.get(name_of_bool, False), bool):
            raise ValueError(f"{name_of_bool} is {said!r}, expected true or false")
    if not isinstance(data["title"], str) or not data["title"].strip():
        raise ValueError(f"title is {data['title']!r}, expected text")
    notebook = _notebook(root, data["notebook"])
    grid = {axis: _axis(axis, values) for axis, values in _mapping("grid", data.get("grid")).items()}
    parameters = _mapping("parameters", data.get("parameters"))
    profiles = _mapping("profiles", data.get("profiles"))
    profiles = {profile: _mapping(f"profile {profile}", changes) for profile, changes in profiles.items()}
    for profile, changes in profiles.items():
        if profile not in PROFILES:
            raise unknown("profile", profile, PROFILES)
        for axis in set(changes) & set(grid):
            _axis(f"{axis} of profile {profile}", _listed(changes[axis]))
    if both := sorted(set(grid) & set(parameters)):
        raise ValueError(f"{both} stand in grid and in parameters, expected in one of them")
    _known_parameters(notebook, [*grid, *parameters, *itertools.chain(*profiles.values())])
    for where in (parameters, *profiles.values()):
        _numbers_are_numbers(where.items())
    columns = tuple(_column(str(name), entry) for name, entry in _mapping("columns", data["columns"]).items())
    key = _key(data["key"], columns)
    return Manifest(
        name=name,
        root=root,
        title=data["title"],
        notebook=notebook,
        grid=grid,
        parameters=parameters,
        profiles=profiles,
        columns=columns,
        key=key,
        cost=data["cost"],
        deterministic=data["deterministic"],
        minutes=_minutes(data.get("minutes")),
        alone=data.get("alone", False),
        needs=_needs(data.get("needs")),
        like=like,
        tolerance=_tolerance(data.get("tolerance")),
    )


def _tolerance(value: Any) -> float:
    if value is None:
        return 0.0
    good = isinstance(value, dict) and set(value) == {"within", "because"} and str(value["because"]).strip()
    if not good or not isinstance(value["within"], float) or not 0 < value["within"] < 1:
        raise ValueError(
            f"tolerance is {value!r}, expected within, a number in (0, 1), and because, a reason"
        )
    return float(value["within"])


def _minutes(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
        raise ValueError(f"minutes is {value!r}, expected a number above 0")
    return float(value)


def _needs(value: Any) -> str | None:
    """The models are known to who runs or checks a table; whoever loads one depends on none of their code."""
    if value is not None and not isinstance(value, str):
        raise ValueError(f"needs is {value!r}, expected the name of a model")
    return value


def _mapping(what: str, value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ValueError(f"{what} is {value!r}, expected a mapping of names")
    return value


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _axis(name: str, values: Any) -> list[Cell]:
    scalars = isinstance(values, list) and all(isinstance(value, (str, int, float)) for value in values)
    if not scalars or not values or len({repr(value) for value in values}) < len(values):
        raise ValueError(f"{name} in grid is {values!r}, expected a list of different numbers or texts")
    _numbers_are_numbers((name, value) for value in values)
    return list(values)


def _numbers_are_numbers(items: Iterable[tuple[str, Any]]) -> None:
    """YAML 1.1 reads 1e-3 as text, and 2026-01-01 as a date: the notebook would fail late, or worse."""
    for name, value in items:
        try:
            json.dumps(value)
        except TypeError:
            raise ValueError(f"{name} is {value!r}, expected numbers, texts, lists or mappings") from None
        try:
            float(value if isinstance(value, str) else "text")
        except ValueError:
            continue
        raise ValueError(f"{name} is the text {value!r}, expected a number with a point (1.0e-3, not 1e-3)")


def _notebook(root: Path, value: Any) -> Path:
    path = PurePosixPath(str(value))
    if path.is_absolute() or ".." in path.parts or path.suffix != ".ipynb":
        raise ValueError(f"notebook is {value!r}, expected the path of an .ipynb below the project root")
    if not (root / path).is_file():
        raise ValueError(f"notebook {value!r} does not exist, expected a file below the project root")
    if not (root / path).resolve().is_relative_to(root):
        raise ValueError(
            f"notebook {value!r} is a link to a file elsewhere, expected one below the project root"
        )
    return root / path


def _known_parameters(notebook: Path, names: Iterable[str]) -> None:
    found = notebook_parameters(notebook)
    default = found.pop(OUT, None)
    if not isinstance(default, ast.Constant) or default.value is not None:
        raise ValueError(
            f"notebook {notebook.name} has no parameter `{OUT} = None`, expected one: "
            "the runner puts the place of the rows there, and without it the notebook writes nothing"
        )
    for name in names:
        if name == OUT:
            raise ValueError(f"`{OUT}` is given by the runner, expected neither in grid nor in parameters")
        if name not in found:
            raise unknown(f"parameter of {notebook.name}", name, found)


def _column(name: str, entry: Any) -> Column:
    entry = _mapping(f"column {name}", {"type": entry} if isinstance(entry, str) else entry)
    for key in entry:
        if key not in ("type", "digits", "missing"):
            raise unknown(f"key of column {name}", key, ("type", "digits", "missing"))
    kind, digits, missing = entry.get("type"), entry.get("digits"), entry.get("missing", False)
    if kind not in TYPES:
        raise unknown(f"type of column {name}", kind, TYPES)
    good = digits is None or (kind == "float" and type(digits) is int and 0 <= digits <= 15)
    if not good or not isinstance(missing, bool):
        wanted = "digits 0 to 15 (float only) and missing true or false"
        raise ValueError(f"column {name} is {entry!r}, expected {wanted}")
    return Column(name, kind, digits, missing)


def _key(value: Any, columns: tuple[Column, ...]) -> tuple[str, ...]:
    if not isinstance(value, list) or not value or len(set(map(str, value))) < len(value):
        raise ValueError(f"key is {value!r}, expected a list of columns that tell the rows apart")
    exact = {column.name: column.digits is None and not column.missing for column in columns}
    for name in value:
        if name not in exact:
            raise unknown("column in key", name, exact)
        if not exact[name]:
            raise ValueError(f"column {name} is in key, expected neither digits nor missing there")
    return tuple(value)


def notebook_digest(path: Path) -> str:
    """sha256 of what the code cells of a notebook do.

    Cells are compared as syntax trees: comments and layout do not count, and neither does the module that a
    name of the packages is imported from. So they may be rearranged without making a result stale.
    """
    names: set[str] = set()
    cells = [_canonical(source, names) for source, _ in code_cells(path)]
    return hashlib.sha256(json.dumps([cells, sorted(names)]).encode()).hexdigest()


def _canonical(source: str, names: set[str]) -> str:
    """A cell without its imports from the package, whose names are added to ``names``."""
    try:
        tree = ast.parse(source)
    except SyntaxError:  # a cell with lines for IPython
        return source
    return ast.dump(_WithoutImports(names).visit(tree))


class _WithoutImports(ast.NodeTransformer):
    """Take out the imports from the package; note what they import, and under which name."""

    def __init__(self, names: set[str]) -> None:
        self.names = names

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.ImportFrom | None:
        if not node.module or node.module.partition(".")[0] not in ("kl_companion", "kl_book"):
            return node
        self.names |= {f"{alias.name} as {alias.asname or alias.name}" for alias in node.names}
        return None


def notebook_parameters(path: Path) -> dict[str, ast.expr]:
    """The names that a notebook's cell tagged `parameters` assigns, with their defaults.

    Raises:
        ValueError: the notebook has no such cell, or more than one, or it does not parse.
    """
    cells = [source for source, tags in code_cells(path) if "parameters" in tags]
    if len(cells) != 1:
        raise ValueError(f"notebook {path.name} has {len(cells)} cells tagged `parameters`, expected one")
    try:
        body = ast.parse(cells[0]).body
    except SyntaxError as error:
        raise ValueError(f"notebook {path.name}: the parameters do not parse: {error}") from None
    found: dict[str, ast.expr] = {}
    for node in body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = getattr(node, "value", None)
        found |= {t.id: value for t in targets if isinstance(t, ast.Name) and isinstance(value, ast.expr)}
    return found


def code_cells(path: Path) -> list[tuple[str, list[str]]]:
    """The code cells of a notebook: source and tags.

    Raises:
        ValueError: the file is no notebook of format 4.
    """
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        code = [cell for cell in cells if cell["cell_type"] == "code"]
        return [("".join(cell["source"]), cell.get("metadata", {}).get("tags", [])) for cell in code]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path.name} is not a notebook of format 4: {error!r}") from None
