"""The house: four floors, one direction, and its rules of thumb, read from the sources."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from slackswap.planners import BUILT_IN, registry

ROOT = Path(__file__).parents[1]
FLOORS = ("hardware", "models", "planners", "evaluate")  # bottom up
FILES = sorted(path for floor in FLOORS for path in (ROOT / floor).rglob("*.py"))
every_file = pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(ROOT)) for path in FILES])

MAX_FILE_LINES, MAX_FUNCTION_LINES, MAX_NESTING = 400, 60, 3
VAGUE_NAMES = ("util", "utils", "helper", "helpers", "misc", "common", "tools", "stuff")
# Longer files, each with its reason.
LONG_FILES = {
    "models/problem.py": "records, columns and the rules of one format: a rule is read beside the column that it guards",
}


def floor_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0]


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def imports_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and module of every import, also inside functions and under TYPE_CHECKING."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            # `from slackswap import evaluate` names its floor among the names.
            names = [f"{module}.{alias.name}" for alias in node.names] if module == "slackswap" else [module]
            yield from ((node.lineno, name) for name in names)


def functions_of(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree_of(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def test_the_four_floors_are_there() -> None:
    assert len(FILES) > 40
    assert {floor_of(path) for path in FILES} == set(FLOORS)


@every_file
def test_floors_import_only_downward(path: Path) -> None:
    allowed = FLOORS[: FLOORS.index(floor_of(path)) + 1]
    for line, module in imports_of(path):
        if module.split(".")[0] != "slackswap":
            continue
        assert module.count(".") >= 1, f"{path}:{line} imports the whole house"
        assert module.split(".")[1] in allowed, f"{path}:{line} imports upward: {module}"


@every_file
def test_imports_are_absolute_and_by_the_installed_name(path: Path) -> None:
    for line, module in imports_of(path):
        assert not module.startswith("."), f"{path}:{line} imports relatively"
        # Installed, the floors are slackswap.models, ...: bare, they are other people's packages.
        assert module.split(".")[0] not in (*FLOORS, "tests", "benchmarks", "notebooks"), f"{path}:{line}: {module}"


def test_the_rule_sees_imports_wherever_they_stand(tmp_path: Path) -> None:
    hidden = tmp_path / "hidden.py"
    hidden.write_text(
        "def f():\n    if True:\n        from slackswap.evaluate import budget\nfrom slackswap import planners\n"
    )
    assert list(imports_of(hidden)) == [(4, "slackswap.planners"), (3, "slackswap.evaluate")]


@every_file
def test_names_say_what_a_file_is_about(path: Path) -> None:
    for part in path.relative_to(ROOT).with_suffix("").parts:
        assert part not in VAGUE_NAMES
        assert part == part.lower()


@every_file
def test_files_have_one_subject_and_a_docstring(path: Path) -> None:
    n_lines = len(path.read_text(encoding="utf-8").splitlines())
    name = str(path.relative_to(ROOT))
    if name in LONG_FILES:
        assert n_lines > MAX_FILE_LINES, f"{name} needs no exception any more"
        assert n_lines <= 500
    else:
        assert n_lines <= MAX_FILE_LINES
    assert ast.get_docstring(tree_of(path))


@every_file
def test_functions_are_short_and_flat(path: Path) -> None:
    for function in functions_of(path):
        n_lines = (function.end_lineno or 0) - function.lineno + 1
        assert n_lines <= MAX_FUNCTION_LINES, f"{path}:{function.lineno} {function.name} has {n_lines} lines"
        assert nesting(function.body) <= MAX_NESTING, f"{path}:{function.lineno} {function.name} nests too deep"


def nesting(body: list[ast.stmt]) -> int:
    """Levels of blocks in a function's body; an `elif` stands beside its `if`, a nested function begins anew."""
    deepest = 0
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        for blocks in blocks_of(statement):
            deepest = max(deepest, 1 + nesting(blocks))
    return deepest


def blocks_of(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    """Yield the blocks that stand one level below a statement."""
    if isinstance(statement, ast.If) and len(statement.orelse) == 1 and isinstance(statement.orelse[0], ast.If):
        yield statement.body
        yield from blocks_of(statement.orelse[0])
        return
    for field in ("body", "orelse", "finalbody"):
        block = getattr(statement, field, [])
        if block:
            yield block
    for handler in getattr(statement, "handlers", []):
        yield handler.body
    for case in getattr(statement, "cases", []):
        yield case.body


@pytest.mark.parametrize(
    ("code", "levels"),
    [
        ("x = 1", 0),
        ("if a:\n    x = 1\nelif b:\n    x = 2\nelse:\n    x = 3", 1),
        ("for a in b:\n    if a:\n        with c:\n            x = 1", 3),
        ("try:\n    x = 1\nexcept E:\n    if a:\n        x = 2", 2),
        ("def f():\n    if a:\n        x = 1", 0),
    ],
)
def test_how_nesting_is_counted(code: str, levels: int) -> None:
    assert nesting(ast.parse(code).body) == levels


def test_functions_are_mostly_tiny() -> None:
    n_lines = sorted((f.end_lineno or 0) - f.lineno + 1 for path in FILES for f in functions_of(path))
    assert n_lines[len(n_lines) // 2] <= 12


def test_every_package_is_typed_and_described() -> None:
    for floor in FLOORS:
        assert (ROOT / floor / "py.typed").is_file()
    folders = {path.parent for path in FILES}
    for folder in folders:
        assert (folder / "__init__.py").is_file(), f"{folder} is no package"


def test_planners_are_registered_once() -> None:
    names = [planner.name for planner in registry().values()]
    assert len(set(names)) == len(names)
    assert {planner.name for planner in BUILT_IN} <= set(names)
    # Nothing else keeps a list of them: names stand where planners are defined. The paper's own comparisons name theirs.
    for path in FILES:
        if floor_of(path) == "planners" or path.name.startswith("reproduction_"):
            continue
        lists = [
            node for node in ast.walk(tree_of(path)) if isinstance(node, ast.List | ast.Tuple | ast.Set | ast.Dict)
        ]
        for node in lists:
            texts = {child.value for child in ast.iter_child_nodes(node) if isinstance(child, ast.Constant)}
            assert len(texts & set(names)) <= 1, f"{path}:{node.lineno} lists planners"


def test_dependencies_are_declared() -> None:
    """What the floors import is the standard library, the house, or a declared dependency."""
    import sys

    declared = {requirement.split(">")[0].split("<")[0].split("[")[0].strip() for requirement in requirements()}
    packages = {"python-highs": "highspy"}
    for path in FILES:
        for line, module in imports_of(path):
            top = module.split(".")[0]
            if top in sys.stdlib_module_names or top in ("slackswap", "__future__"):
                continue
            assert packages.get(top, top) in declared, (
                f"{path}:{line} imports {top}, which pyproject.toml does not name"
            )


def requirements() -> list[str]:
    return [requirement.split(";")[0] for requirement in metadata.requires("slackswap") or []]
