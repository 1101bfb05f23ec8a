"""The mistakes of `mutants.py` are seen by the tests that are to see them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import count
from pathlib import Path

import pytest
from mutants import MUTANTS, Mutant

REPOSITORY = Path(__file__).parents[2]
SOURCE, TESTS = REPOSITORY / "src", REPOSITORY / "tests"
AT_LEAST = 0.95
"""Share of the mutants that must be killed."""
LIMIT = 300.0
"""Seconds for the tests of one mutant: a mistake may make them wait for ever."""


def test_the_table_fits_the_sources():
    """Every original stands once in its file, and every test is there. What has moved is told with its new place."""
    wrong = []
    for mutant in MUTANTS:
        if (n := text_of(SOURCE / "lapae" / mutant.source).count(mutant.original)) != 1:
            places = places_of(mutant.original, SOURCE / "lapae")
            wrong.append(f"{mutant.name}: its text is {n} times in {mutant.source}, expected once; it is in {places}")
        if (definition := f"def {mutant.test}(") not in text_of(TESTS / mutant.file):
            places = places_of(definition, TESTS)
            wrong.append(f"{mutant.name}: {mutant.file} has no {mutant.test}; it is in {places}")
    assert not wrong, "\n".join(wrong)
    assert len(MUTANTS) >= 60
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


@cache
def text_of(file: Path) -> str:
    """Return the text of a file, empty where there is none."""
    return file.read_text("utf-8") if file.exists() else ""


def places_of(text: str, folder: Path) -> str:
    """Name the files under `folder` that hold a text."""
    return ", ".join(str(file.relative_to(folder)) for file in folder.rglob("*.py") if text in text_of(file)) or "none"


@pytest.mark.slow
def test_mutants_are_killed(tmp_path):
    """At least 95 in 100. The survivors are named; that the tests pass without any mutation is looked at first."""
    began = time.monotonic()
    whole = tmp_path / "whole"
    shutil.copytree(SOURCE, whole, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    subprocess.run([sys.executable, "-m", "compileall", "-q", whole], check=True)
    code = "import lapae; print(lapae.__file__)"
    found = subprocess.run([sys.executable, "-c", code], env=environment(whole), check=True, capture_output=True)
    assert Path(found.stdout.decode().strip()).is_relative_to(whole)

    nodes: dict[str, dict[str, None]] = defaultdict(dict)  # each once, in their order
    for mutant in MUTANTS:
        nodes[mutant.file][f"tests/{mutant.file}::{mutant.test}"] = None
    numbers = count()

    def killed(mutant: Mutant) -> bool:
        """Whether the test of a mutant fails."""
        folder = mutated(mutant, whole, tmp_path / str(next(numbers)))
        status, said = run_tests([f"tests/{mutant.file}::{mutant.test}"], folder)
        shutil.rmtree(folder)
        print({0: "survived", None: "without an end"}.get(status, "killed"), mutant.name, sep=": ", flush=True)
        assert status in (0, 1, None), f"{mutant.name}: its test did not run\n{said}"
        return status != 0

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for file, (status, said) in zip(
            nodes, pool.map(lambda file: run_tests(list(nodes[file]), whole), nodes), strict=True
        ):
            assert status == 0, f"{file} fails without any mutation\n{said}"
        dead = list(pool.map(killed, MUTANTS))
    survivors = [mutant.name for mutant, is_dead in zip(MUTANTS, dead, strict=True) if not is_dead]
    print(f"\n{sum(dead)} of {len(dead)} mutants killed in {time.monotonic() - began:.0f} s; survivors:", survivors)
    assert sum(dead) >= AT_LEAST * len(dead), f"survivors: {', '.join(survivors)}"


def environment(source: Path) -> dict[str, str]:
    """Variables of a process that imports from `source`, draws the same examples each time and writes nothing there."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return plain | {"PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1", "CI": "true"}


def mutated(mutant: Mutant, whole: Path, folder: Path) -> Path:
    """Put a mutant into `folder`: its files are those of `whole`, but for one."""
    shutil.copytree(whole, folder, copy_function=os.link)
    file = folder / "lapae" / mutant.source
    text = file.read_text("utf-8")
    file.unlink()  # and not written through the link
    file.write_text(text.replace(mutant.original, mutant.mutated), "utf-8")
    for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*"):
        compiled.unlink()
    return folder


def run_tests(nodes: list[str], source: Path) -> tuple[int | None, str]:
    """Return pytest's exit status (None after `LIMIT`), and the end of what it said."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *nodes]
    with subprocess.Popen(
        command,
        cwd=REPOSITORY,
        env=environment(source),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            said = process.communicate(timeout=LIMIT)[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return None, process.communicate()[0][-4000:]
        return process.returncode, said[-4000:]
