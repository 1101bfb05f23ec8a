"""Commands that this package adds to `lapae`, through the entry point `lapae.commands`."""

from lapae.cli.registry import Command

bench = Command(
    "measure speed and memory of the curvature and of a training step, compared with installed peers",
    "lapae_paper.commands.bench",
)
reproduce = Command(
    "reproduce a table or figure of the paper, or all of them, compared with its numbers",
    "lapae_paper.commands.reproduce",
)
