"""Work that kills its own process the first times it is asked to do a part."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from threading import Timer

from lapae.arrow.mapper import Mapper
from lapae.arrow.parts import Part, Written, write_part


def killed_at_first(part: Part, times: int) -> Written:
    """Do nothing for a part, but be killed `times` times before; tries are counted in files beside the target."""
    tries = len(list(Path(part.target).parent.glob("try-*")))
    if part.source == "b" and tries < times:
        Path(part.target).with_name(f"try-{tries}").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return Written(part, 1, None)


def killed_half_way(part: Part, mapper: Mapper) -> Written:
    """Do a part, but let every other part's first process be killed while it works on it."""
    tried = Path(part.target).with_name(f"tried-{Path(part.target).name}")
    if int(Path(part.target).stem) % 2 == 0 and not tried.exists():
        tried.touch()
        Timer(0.01, os.kill, (os.getpid(), signal.SIGKILL)).start()
        while True:
            write_part(mapper, part)
    return write_part(mapper, part)
