"""The processes of a job: how they are started, and what the environment tells each of its place among them.

torchrun starts a job's processes and tells each its place; `lapae train --devices N` lets torchrun's own code do the
same. No torch is imported before processes are started: the command line asks here before it imports.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from lapae.errors import ConfigError

GRACE_SECONDS = 3
_LAUNCHER = "LAPAE_LAUNCHER"
"""Environment variable: process id of the `lapae train --devices N` that started this process."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


def in_job() -> bool:
    """Whether torchrun, or `--devices`, started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def launched() -> int:
    """Processes of this job; 1 where there is none."""
    return int(os.environ["WORLD_SIZE"]) if in_job() else 1


def launched_on_node() -> int:
    """Those of them on this machine."""
    return int(os.environ["LOCAL_WORLD_SIZE"]) if in_job() else 1


def place(of: str = "RANK") -> int:
    """Rank of this process before it has met the others; of="LOCAL_RANK": among those of its machine."""
    return int(os.environ.get(of, "0"))


def may_restart() -> bool:
    """Whether torchrun starts the job again when a process dies (--max-restarts)."""
    return int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")) > 0


def restarted() -> bool:
    """Whether torchrun has started the job again, after a process died."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def tell_launcher(message: str) -> None:
    """Have torchrun's account of a failed job say why this process failed."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        with contextlib.suppress(OSError):
            Path(path).write_text(json.dumps({"message": message, "timestamp": int(time.time())}))


def await_end() -> None:
    """Wait for torchrun to end this process, since another one has failed: so that it names that one as the cause."""
    if launched() > 1:
        time.sleep(GRACE_SECONDS)


def start_processes(arguments: Sequence[str], devices: int, num_nodes: int) -> int:
    """Run `lapae ARGUMENTS` on `devices` processes here, of a job on `num_nodes` machines; the job's exit code.

    Where a process fails, the others are ended. It has said why, unless it was killed: that is said here.
    """
    from torch.distributed import DistError  # pyright: ignore[reportPrivateImportUsage]
    from torch.distributed import run as torchrun
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    from lapae.runs.files import passing_folder

    meeting = ["--standalone"] if num_nodes == 1 else _meeting_place(num_nodes)
    threads = str(max(1, (os.cpu_count() or 1) // devices))
    # torchrun leaves its folder of logs behind, and tells of failures in tracebacks of its own.
    with passing_folder("lapae-job") as logs, _undisturbed():
        os.environ |= {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", threads), _LAUNCHER: str(os.getpid())}
        options = [*meeting, "--nproc-per-node", str(devices), "--log-dir", str(logs), "-m", "lapae"]
        try:
            torchrun.run(torchrun.parse_args([*options, *arguments]))
        except ChildFailedError as error:
            rank, failure = error.get_first_failure()
            if failure.exitcode >= 0:
                return failure.exitcode
            name = signal.Signals(-failure.exitcode).name
            print(f"lapae: process {rank} of this job was ended by {name}, and the others with it", file=sys.stderr)
            return 128 - failure.exitcode
        except SignalException as error:
            return 128 + error.sigval
        except DistError as error:
            if num_nodes == 1:
                raise
            where = "the machines of this job cannot meet at {MASTER_ADDR}:{MASTER_PORT}".format(**os.environ)
            reason = str(error).partition("\n")[0]
            raise ConfigError(f"{where}: {reason}") from error
    return 0


def end_with_launcher() -> None:
    """Have the system end this process when the command that started it ends, however it ends (Linux)."""
    launcher = os.environ.get(_LAUNCHER)
    if launcher is None or not sys.platform.startswith("linux"):
        return
    import ctypes

    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(launcher):  # it has ended already
        os.kill(os.getpid(), signal.SIGTERM)


def _meeting_place(num_nodes: int) -> list[str]:
    """torchrun's options for the machines to find each other, from the environment."""
    found = {name: os.environ.get(name) for name in ("MASTER_ADDR", "MASTER_PORT")}
    found["NODE_RANK"] = os.environ.get("NODE_RANK", os.environ.get("SLURM_NODEID"))
    missing = [name for name, value in found.items() if value is None]
    if missing:
        raise ConfigError(f"num_nodes = {num_nodes}: set {', '.join(missing)}, or start the job with torchrun")
    address, port, node = map(str, found.values())
    return ["--nnodes", str(num_nodes), "--node-rank", node, "--master-addr", address, "--master-port", port]


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Put back what a job changes in this process, signal handlers and environment; and keep torchrun's log quiet."""
    import logging

    environment = dict(os.environ)
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for name in os.environ.keys() - environment.keys():
            del os.environ[name]
        os.environ |= environment
