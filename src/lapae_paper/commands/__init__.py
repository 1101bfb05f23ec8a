"""Commands that this package adds to `lapae`, through the entry point `lapae.commands`."""

from lapae.cli.registry import Command

bench = Command(
    "speed and memory of the curvature and of a training step, beside peers that are installed",
    "lapae_paper.commands.bench",
)
reproduce = Command(
    "a table or figure of the paper, beside its own numbers; all of them", "lapae_paper.commands.reproduce"
)
