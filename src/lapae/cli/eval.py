"""`lapae eval`."""

from __future__ import annotations

import inspect
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar

from lapae.cli.new_data import UNNAMED, Run
from lapae.cli.parsing import parse
from lapae.cli.run_folder import open_run
from lapae.errors import ConfigError
from lapae.evaluate import TASKS, run_task
from lapae.registry import listing

Options = TypeVar("Options")


@dataclass(frozen=True)
class EvalCommand(Generic[Options]):
    """Evaluate a trained run. Numbers are written into its folder tasks/, pictures into figures/."""

    run: Run
    """Folder of a trained run."""
    options: Annotated[Options, UNNAMED] = field()
    data: Path | None = None
    """A file, or a folder of images, to evaluate on; default: the held-out part of the data of the run."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: cuda if there is one."""
    json: bool = False
    """Print one JSON object to stdout."""


USAGE = """usage: lapae eval TASK RUN [options]

Evaluate a trained run, on the held-out part of its data or on a file (--data FILE). Numbers are written into its
folder tasks/, pictures into figures/; lapae report RUN shows them.

tasks (lapae eval TASK --help lists the options of each):
{tasks}"""


def main(arguments: Sequence[str]) -> int:
    """Parse, run the task, write and print its result."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE.format(tasks=listing(TASKS.titles())))
        return 0 if arguments else 2
    name = arguments[0]
    task = TASKS.find(name)
    kind: Any = task.load_options()
    about = f"{task.title}. {task.note}\n\n{inspect.getdoc(EvalCommand)}"
    command: EvalCommand[Any] = parse(EvalCommand[kind], arguments[1:], f"lapae eval {name}", description=about)
    from lapae.runs.results import save_result

    options: Any = command.options
    places = {name: getattr(options, name, None) for name in ("data_dir", "label_column")}
    run, model, data = open_run(command.run, command.device, file=command.data, **places)
    began = time.monotonic()
    try:
        result = run_task(name, model, data, options)
    except ValueError as error:  # the task cannot work with these options or data
        raise ConfigError(f"{name}: {error}") from error
    record = save_result(run, name, options, result, time.monotonic() - began)
    if command.json:
        print(json.dumps({"run": str(run.path), "task": name, "options": record.options, **record.result}))
        return 0
    print(record.table)
    print(f"\n{run / 'tasks'}/{name}.json")
    return 0
