"""What all commands do with their arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tyro


def parse(kind: Any, arguments: Sequence[str], prog: str, **how: Any) -> Any:
    """The dataclass `kind` of a command, filled from its arguments; help and mistakes end the process.

    Args:
        kind: its fields are the options, their docstrings the help.
        arguments: those after the command's name.
        prog: the command, for help and messages.
        how: further arguments of `tyro.cli`.
    """
    # an option that is not given is None; nobody needs to write that
    return tyro.cli(kind, args=list(arguments), prog=prog, config=(tyro.conf.DisallowNone,), **how)
