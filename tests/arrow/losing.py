"""Work that kills its own process the first times it is asked to do a part."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from lapae.arrow.parts import Part, Written


def killed_at_first(part: Part, times: int) -> Written:
    """Do nothing for a part, but be killed `times` times before; tries are counted in files beside the target."""
    tries = len(list(Path(part.target).parent.glob("try-*")))
    if part.source == "b" and tries < times:
        Path(part.target).with_name(f"try-{tries}").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return Written(part, 1, None)
