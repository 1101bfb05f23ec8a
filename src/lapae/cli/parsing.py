"""Parsing of arguments, the same for all commands."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections.abc import Sequence
from typing import Any

import tyro

from lapae.errors import ConfigError

KINDS = {
    "INT": "a whole number",
    "INTs": "whole numbers",
    "FLOAT": "a number",
    "FLOATs": "numbers",
    "PATH": "a path",
    "{True,False}": "True or False",
}
"""What a flag takes, in words."""


def parse(kind: Any, arguments: Sequence[str], prog: str, **how: Any) -> Any:
    """Return the dataclass `kind` of a command, filled from its arguments; a mistake raises ConfigError, help exits.

    Args:
        kind: its fields are the options, their docstrings the help.
        arguments: the arguments after the command's name.
        prog: name of the command, for help and messages.
        how: further arguments of `tyro.cli`.
    """
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            # an option that is not given is None; nobody needs to write that
            return tyro.cli(kind, args=list(arguments), prog=prog, config=(tyro.conf.DisallowNone,), **how)
    except SystemExit as stop:
        if stop.code in (0, None) or not said.getvalue():
            sys.stderr.write(said.getvalue())
            raise
        raise ConfigError(f"{in_one_line(said.getvalue())}; see {prog} --help") from None


def in_one_line(box: str) -> str:
    """Return what tyro says in a box as one line, without the help and the Python types that it quotes."""
    plain = re.sub(r"\x1b\[[\d;]*m", "", box)
    lines = [line.strip("│").rstrip() for line in plain.splitlines() if line.startswith("│")]
    lines = lines or [line.rstrip() for line in plain.splitlines()[2:]]  # no box, if a terminal has ASCII alone
    parts = "\n".join("---" if set(line.strip()) in ({"─"}, {"-"}) else line for line in lines).split("\n---\n")
    first = " ".join(parts[0].split())
    if value := re.match(r"Error parsing (\S+): no type matching (.+?) could be instantiated from \[(.*?)\]", first):
        flag, takes, given = value.groups()
        takes = re.sub(r"^\{\[(\w+) .*", r"\1s", takes)  # {[INT [INT ...]]}
        return f"{flag.split('/')[-1]}: expected {KINDS.get(takes, takes)}, got {given}"
    if first.startswith("Missing from "):
        names = [line.split(", ")[-1].split()[0] for line in parts[0].splitlines() if re.match(r" {5,6}\S", line)]
        return f"missing: {', '.join(names)}"
    if choice := re.match(r"invalid choice '(.*?)' for argument '(.*?)'. Expected one of \((.*)\)", first):
        named = sorted(name.strip("' ") for name in choice[3].split(",") if name.strip("' ") not in ("None", ""))
        return f"{choice[2]}: expected one of {', '.join(named)}, got {choice[1]!r}"
    if first.startswith("Missing value for"):
        return re.sub(r"Missing value for argument '(.*?)'.*", r"\1: a value is missing", first)
    meant = re.findall(r"^ {5,6}(--\S+)", parts[1], re.M) if len(parts) > 1 and "Perhaps you meant" in parts[1] else []
    first = re.sub(r"^Unrecognized options: (--\S+?),.*", r"there is no option \1", first)
    first = re.sub(r"^Unrecognized options: ", "not understood: ", first)
    return first + (f"; perhaps you meant {' or '.join(meant)}" if meant else "")
