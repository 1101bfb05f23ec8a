"""Wheel and sdist: built from a copy, and used from outside the repository without it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BUILD = "from setuptools import build_meta as b; b.build_sdist('dist'); b.build_wheel('dist')"


@pytest.fixture(scope="module")
def dist(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("package")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, place)
    shutil.copytree(ROOT / "src", place / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    subprocess.run([sys.executable, "-c", BUILD], cwd=place, check=True, capture_output=True, text=True)
    return place / "dist"


def test_both_hold_every_file_that_the_library_reads(dist):
    files = {
        path.relative_to(ROOT / "src").as_posix()
        for suffix in ("py", "html", "css", "js", "typed")
        for path in (ROOT / "src").rglob(f"*.{suffix}")
    }
    with zipfile.ZipFile(next(dist.glob("*.whl"))) as wheel:
        assert files <= set(wheel.namelist())
    with tarfile.open(next(dist.glob("*.tar.gz"))) as sdist:
        assert files <= {name.partition("/src/")[2] for name in sdist.getnames()}


def test_what_is_required_is_pinned_and_nothing_is_under_the_gpl(dist):
    """An example of what is under the GPL is ivon-opt, a peer of the online posterior."""
    with zipfile.ZipFile(next(dist.glob("*.whl"))) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith("/METADATA"))
        metadata = Parser().parsestr(wheel.read(name).decode())
    required = {plain_name(line) for line in metadata.get_all("Requires-Dist", [])} - {"lapae"}
    pinned = {name: locked(name) for name in ("run", "dev")}
    assert "torch" in required
    core = {plain_name(line) for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line}
    assert core - {"torch"} <= set(pinned["run"])
    engines = {"dask", "ray", "pyspark"}  # the tests of these are skipped where they are not installed
    assert required - {"torch", "lapae", "atheris"} - engines <= set(pinned["dev"])  # atheris: for one benchmark alone
    assert pinned["run"].items() <= pinned["dev"].items()
    assert not {name for name in {*required, *pinned["dev"]} if "ivon" in name}
    build = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["build-system"]["requires"]
    assert build == [f"setuptools=={pinned['run']['setuptools']}"]


def locked(name: str) -> dict[str, str]:
    """Versions by package; each must have a hash."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text("utf-8")
    entries = re.findall(r"^(\S+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", text, re.MULTILINE)
    assert len(entries) == text.count("==") > 30
    return {package: version for package, version, _ in entries}


def plain_name(requirement: str) -> str:
    """Of a package, as an index spells it."""
    name = re.match(r"[\w.-]+", requirement)
    assert name is not None
    return re.sub(r"[-_.]+", "-", name[0]).lower()


def test_the_wheel_works_where_the_repository_is_not(dist, tmp_path):
    with zipfile.ZipFile(next(dist.glob("*.whl"))) as wheel:
        wheel.extractall(tmp_path / "installed")
    paths = [str(tmp_path / "installed"), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    where = "import lapae, lapae_paper; print(lapae.__file__, lapae_paper.__file__)"

    def run(*words: str) -> str:
        done = subprocess.run([sys.executable, *words], cwd=tmp_path, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert all(path.startswith(str(tmp_path)) for path in run("-c", where).split())
    assert "noisy-adam" in run("-m", "lapae", "train", "--help-all")
    small = ["--hidden", "8", "--epochs", "1", "--limit", "100", "--device", "cpu", "--no-verbose"]
    run("-m", "lapae", "train", "digits", *small, "--out", "run")
    assert "report.html" in run("-m", "lapae", "report", "run", "--points", "50")
