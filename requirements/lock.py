"""Write run.txt and dev.txt: every package that `make` installs, with its hashes, from the environment that runs this.

    pip install uv && python requirements/lock.py          # in the environment of `make test`

torch is left out: which of its builds an index offers (CPU or CUDA, with other packages behind them) differs from
machine to machine, so the Makefile pins its version alone.
"""

from __future__ import annotations

import re
import subprocess
from importlib.metadata import distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement

HERE = Path(__file__).parent
LEFT_OUT = re.compile(r"torch|pip|uv|wheel|lapae|cuda-.*|nvidia-.*|triton|atheris")
HEAD = "# Made by requirements/lock.py: what `make {}` installs beside torch.\n"


def name_of(text: str) -> str:
    return re.sub(r"[-_.]+", "-", text).lower()


def needed(package: str, found: set[str]) -> set[str]:
    """A package and all that it needs in its turn."""
    if name_of(package) not in found:
        found.add(name_of(package))
        for line in distribution(package).requires or ():
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                needed(requirement.name, found)
    return found


def lock(names: set[str], target: str) -> None:
    pins = "\n".join(f"{n}=={distribution(n).version}" for n in sorted(names) if not LEFT_OUT.fullmatch(n))
    command = ["uv", "pip", "compile", "--quiet", "--no-deps", "--no-header", "--no-annotate", "--generate-hashes", "-"]
    text = subprocess.run(command, input=pins, capture_output=True, text=True, check=True).stdout
    (HERE / f"{target}.txt").write_text(HEAD.format({"run": "demo", "dev": "test"}[target]) + text, "utf-8")


lock(needed("lapae", {"setuptools"}) | {"setuptools"}, "run")
lock({name_of(d.metadata["Name"]) for d in distributions()}, "dev")
