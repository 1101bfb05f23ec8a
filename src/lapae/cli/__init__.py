"""The command line. One file for each command, imported when it is called, so that help is instant.

A command is a module with `main(arguments) -> exit code` and an entry in `registry.COMMANDS`.
"""

from __future__ import annotations

import io
import sys
import warnings
from collections.abc import Mapping, Sequence

from lapae import __version__
from lapae.cli.registry import COMMANDS
from lapae.cli.signals import Terminated, cleaning_up
from lapae.errors import ConfigError, ElsewhereError, LapaeError
from lapae.registry import listing, research_shown
from lapae.train.torchrun import await_end, job_rank, job_size, report_failure

FAILED, INTERRUPTED, TERMINATED = 2, 130, 143
ALL = "--help-all"


GROUPS = {
    "get started": ("demo", "data", "train", "list"),
    "use a trained run on new data": ("score", "impute", "embed", "reconstruct", "sample", "export"),
    "inspect and evaluate a run": ("report", "explore", "eval", "drift"),
}
"""Commands under the headings of `lapae --help`; those that other packages add come after them."""

USAGE = """usage: lapae COMMAND ...

Anomaly detection and missing values in tables, images and time series, with calibrated uncertainty.
lapae COMMAND --help explains each command.

{commands}

options:
  --help      this text
  --help-all  the help of any command with every option, including methods, networks and tasks for research
  --version   the version"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. A mistake of the user ends with one line on stderr and exit code 2, Ctrl-C with 130."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if ALL in given:
        with research_shown():
            return main(["--help" if word == ALL else word for word in given])
    if isinstance(sys.stdout, io.TextIOWrapper):  # if a terminal has no Greek letters, they are written as codes
        sys.stdout.reconfigure(errors="backslashreplace")
    if not given or given[0] in ("-h", "--help", "help"):
        print(USAGE.format(commands=grouped(COMMANDS.titles())))
        return 0 if given else FAILED
    if given[0] == "--version":
        print(f"lapae {__version__}")
        return 0
    try:
        command = COMMANDS.find(given[0])
    except ConfigError as error:
        return _fail(str(error))
    if job_size() > 1 and not command.several:
        name = f"lapae {given[0]}"
        return _fail(f"{name} runs in one process, but torchrun started {job_size()}: start it without torchrun")
    warnings.showwarning = _show_warning
    try:
        with cleaning_up():
            return command.load().main(given[1:])
    except ElsewhereError:  # the process that failed says why
        await_end()
        return FAILED
    except LapaeError as error:
        return _fail(str(error))
    except (MemoryError, RuntimeError) as error:
        from lapae.curvature.chunking import OutOfMemory, is_out_of_memory

        if isinstance(error, OutOfMemory):
            return _fail(str(error))
        if is_out_of_memory(error):
            return _fail(f"out of memory: try a smaller batch_size or network, or device cpu ({str(error)[:200]})")
        if _others_are_gone(error):
            await_end()
            return _fail("another process of this job has ended or cannot be reached, so this one cannot continue")
        raise
    except BrokenPipeError:  # the reader of a pipe has closed it
        sys.stderr.close()
        return INTERRUPTED
    except Terminated:
        print("lapae: terminated", file=sys.stderr)
        return TERMINATED
    except KeyboardInterrupt:
        print("lapae: interrupted", file=sys.stderr)
        return INTERRUPTED
    finally:
        if "lapae.train.distributed" in sys.modules:
            sys.modules["lapae.train.distributed"].leave()


def grouped(titles: Mapping[str, str]) -> str:
    """Return commands and their titles under the headings of `GROUPS`, in columns of one width."""
    width, placed = max(map(len, titles)), {name for names in GROUPS.values() for name in names}
    groups = {**GROUPS, "more": tuple(name for name in titles if name not in placed)}
    parts = {
        head: {f"{name:<{width}}": titles[name] for name in names if name in titles} for head, names in groups.items()
    }
    return "\n\n".join(f"{head}:\n{listing(found)}" for head, found in parts.items() if found)


def _others_are_gone(error: Exception) -> bool:
    processes = sys.modules.get("lapae.train.distributed")
    return processes is not None and processes.lost_connection(error)


def _fail(message: str) -> int:
    speaker = f"lapae: process {job_rank()}" if job_size() > 1 else "lapae"
    print(f"{speaker}: {' '.join(message.split())}", file=sys.stderr)
    report_failure(message)
    return FAILED


def _show_warning(message, category, filename, lineno, file=None, line=None) -> None:
    """Print a warning as one line, without the place in the code, which is of no use on the command line."""
    print(f"lapae: warning: {' '.join(str(message).split())}", file=sys.stderr)
