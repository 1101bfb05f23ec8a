"""The shape of the tree: who may import whom, what is imported when, and how large files are."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import lapae
import lapae_paper
import lapae_runtime

ROOT = Path(lapae.__file__).parent
PAPER = Path(lapae_paper.__file__).parent
REPOSITORY = Path(__file__).parents[1]
LAYERS = (
    *("errors", "registry", "config", "runs", "curvature", "features", "space", "data", "networks"),
    *("posterior", "methods", "train", "predict", "score", "calibrate", "impute", "generate", "model storage"),
    *("export", "fit", "cross", "evaluate", "view", "estimator", "arrow", "hub mlflow pyod", "cli"),
    "__init__ __main__",
)
"""From the lowest to the highest: a part imports parts before it, in the order of the data. A model saves and loads
itself, so that these two files are one part."""
RANK = {name: i for i, layer in enumerate(LAYERS) for name in layer.split()}
UPWARD: set[tuple[str, str]] = set()
"""Imports that still go upward, (file, part). The test wants it exact: one that is mended is taken out here."""
MOST_MODULES = 13


def files(root: Path = ROOT) -> Iterator[Path]:
    return root.rglob("*.py")


def part(path: Path) -> str:
    """The file or folder of the root that a file belongs to."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported(path: Path) -> Iterator[str]:
    """Modules that a file imports anywhere, also inside functions; not what only the type checker reads."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for_types = {
        child
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for child in ast.walk(node)
    }
    for node in ast.walk(tree):
        if node in for_types:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            yield str(node.module)
            if node.module in ("lapae", "lapae.curvature"):
                yield from (f"{node.module}.{alias.name}" for alias in node.names)


def parts_imported(path: Path) -> set[str]:
    names = (name.split(".") for name in imported(path))
    return {name[1] for name in names if name[0] == "lapae" and len(name) > 1 and name[1] in RANK}


def test_every_part_of_the_root_has_its_place():
    assert {part(path) for path in files()} == set(RANK)


def test_the_architecture_page_is_right():
    text = (REPOSITORY / "ARCHITECTURE.md").read_text(encoding="utf-8")
    tree = re.findall(r"^\| (`[^|]+) \|", text.partition("| in `src/lapae`")[2].partition("\n\n")[0], re.M)
    parts = [name.removesuffix(".py") for row in tree for name in re.findall(r"`([\w.]+)/?`", row)]
    assert parts == [name for name in RANK if not name.startswith("__")]
    for name in re.findall(r"`([\w/]+(?:\.py|\.md|/))`", text):
        assert (ROOT / name).exists() or (REPOSITORY / name).exists(), name


def test_imports_go_downward():
    """This also means that there are no cycles between parts."""
    upward = {
        (path.relative_to(ROOT).as_posix(), other)
        for path in files()
        for other in parts_imported(path)
        if RANK[other] > RANK[part(path)]
    }
    assert upward == UPWARD


def test_the_curvature_engine_stands_alone():
    for path in files(ROOT / "curvature"):
        ours = {name for name in imported(path) if name.split(".")[0] == "lapae"}
        assert all(name == "lapae" or name.startswith("lapae.curvature") for name in ours), path


def test_no_command_imports_another():
    from lapae.cli.registry import COMMANDS

    commands = {entry.target for entry in COMMANDS.values()}
    for path in files(ROOT / "cli"):
        assert not commands & set(imported(path)), path


def test_the_library_does_not_know_the_paper():
    for path in files():
        assert not any(name.split(".")[0] == "lapae_paper" for name in imported(path)), path


def test_the_runtime_needs_neither_the_library_nor_torch():
    for path in files(Path(lapae_runtime.__file__).parent):
        others = {name.split(".")[0] for name in imported(path)} - set(sys.stdlib_module_names)
        assert others <= {"lapae_runtime", "numpy", "onnxruntime"}, path


def test_root_has_few_modules():
    modules = sorted(path.name for path in ROOT.glob("*.py"))
    assert len(modules) <= MOST_MODULES, modules


@pytest.mark.parametrize(
    ("code", "heavy"),
    [
        ("import lapae; dir(lapae)", ("torch",)),
        ("import lapae.config; lapae.config.Config().resolved()", ("torch", "numpy")),
        ("import lapae.evaluate; lapae.evaluate.TASKS.titles()", ("torch", "numpy")),
        ("from lapae.cli import main; main(['--help'])", ("torch", "numpy", "tyro")),
    ],
)
def test_what_is_looked_at_first_imports_nothing_heavy(code, heavy):
    check = f"{code}\nimport sys\nassert not set({heavy}) & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
