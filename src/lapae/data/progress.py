"""A progress bar on a terminal; nothing elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress(description: str, total: int | None, *, unit_bytes: bool = False) -> Iterator[Callable[[int], None]]:
    """Show the progress of work of size `total` on stderr (None: show nothing); the body calls the function with each
    amount done."""
    # rich is imported where it is shown, so that importing lapae.data stays light
    from rich.console import Console

    console = Console(stderr=True)
    if total is None or not console.is_terminal:  # rich 14.0 ends a bar that is disabled with an empty line
        yield lambda done: None
        return
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    amount = DownloadColumn() if unit_bytes else MofNCompleteColumn()
    columns = (TextColumn("{task.description}"), BarColumn(), amount, TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(description, total=total)
        yield lambda done: bar.advance(task, done)
