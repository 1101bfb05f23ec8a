"""A process that has imported everything, and forks one for every call: it starts in moments, and may be killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent.parent
SERVE = "import sys; sys.path.insert(0, sys.argv[1]); from faults.server import serve; serve()"


class Server:
    """The process, from the side of the one who calls."""

    def __init__(self) -> None:
        command = [sys.executable, "-c", SERVE, str(TESTS)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def call(self, function: Callable[..., int], *arguments: Any) -> int:
        """The exit code of a process that calls a function of a module with plain values; minus its signal."""
        given = [str(value) if isinstance(value, Path) else value for value in arguments]
        return self._ask({"module": function.__module__, "function": function.__name__, "arguments": given})

    def load(self, modules: Sequence[str]) -> None:
        """Import modules before the next call."""
        self._ask({"modules": list(modules)})

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def _ask(self, question: dict[str, Any]) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(question), file=self.process.stdin, flush=True)
        return int(self.process.stdout.readline())


def serve() -> None:
    """Answer questions until there are no more."""
    for line in sys.stdin:
        question = json.loads(line)
        print(_load(question["modules"]) if "modules" in question else _forked(**question), flush=True)


def _load(modules: Sequence[str]) -> int:
    for name in modules:
        with suppress(Exception):  # what cannot be imported here is imported by who needs it
            import_module(name)
    return 0


def _forked(module: str, function: str, arguments: list[Any]) -> int:
    call = getattr(import_module(module), function)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = call(*arguments)
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
