"""A command of another package."""

from lapae.cli.registry import Command

wave = Command("greet from another package", "lapae_jitter_command")


def main(arguments):
    print("hello", *arguments)
    return 0
