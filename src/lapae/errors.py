"""What goes wrong through no fault of the program: bad options, bad files, a run in use, a loss that explodes.

The command line prints these as one line without a traceback.
"""


class LapaeError(Exception):
    """Base of the errors that a user can mend."""


class ConfigError(LapaeError, ValueError):
    """An option, or a configuration file, that is not valid."""


class RunError(LapaeError):
    """A run folder that is absent, in use, damaged, or of another program."""


class DivergedError(LapaeError):
    """Training stopped because its loss is no longer a finite number."""


class ElsewhereError(LapaeError):
    """Another process of the same job has failed, and says why: this one only ends."""
