"""Errors that a user can fix: bad options, bad files, a run in use, a loss that diverges.

The command line prints these as one line without a traceback.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

UNFINISHED = "this model has no calibration, as its training was not finished: lapae train --resume RUN finishes it"
"""Message for scores of a run that was stopped."""


class LapaeError(Exception):
    """Base of the errors that a user can fix."""


class ConfigError(LapaeError, ValueError):
    """An invalid option or configuration file."""


class DataError(LapaeError, ValueError):
    """Data that cannot be used. The message names the file, and the row or column if there is one."""


class RunError(LapaeError):
    """A run folder that is missing, in use, damaged, or from another program."""


class DivergedError(LapaeError):
    """Training stopped because its loss is no longer a finite number."""


class ElsewhereError(LapaeError):
    """Another process of the same job has failed and reports why, so this one just ends."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return " (did you mean 'mnist'?)", or an empty string if no known name is similar."""
    near = get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" (did you mean {near[0]!r}?)" if near else ""
