"""The version, alone in its file so that nothing heavy is imported to read it."""

__version__ = "0.1.0"
