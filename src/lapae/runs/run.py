"""The folder of a run: its files, written whole or not at all, and the lock of the process that writes them.

    config.toml              the resolved configuration, with versions
    checkpoint.safetensors   what resuming needs (the one before it: checkpoint.previous.safetensors)
    metrics.jsonl            a line an epoch, as training goes
    model.safetensors        the best weights; posterior.safetensors: the tensors of the posterior
    metrics.json             the final numbers; its presence says that the run is finished

Tensor files contain JSON metadata and a digest of their content, so that damage is found when they are read.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import re
import socket
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from lapae.errors import RunError
from lapae.runs.files import is_at, make_folder, stamp, sweep, write_whole
from lapae.runs.locks import lock
from lapae.runs.texts import check_regular, read_text, sealed, unsealed

if TYPE_CHECKING:
    from torch import Tensor

ABOUT, CONFIG, MODEL, POSTERIOR = "estimator.json", "config.toml", "model.safetensors", "posterior.safetensors"
CHECKPOINT, PREVIOUS = "checkpoint.safetensors", "checkpoint.previous.safetensors"
NEXT = "checkpoint.next.safetensors"
HISTORY, METRICS = "metrics.jsonl", "metrics.json"
_LOCK = ".lock"
PATIENCE = 10
"""Maximum number of times that a file is read again if it is replaced meanwhile."""


class Run:
    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @classmethod
    def create(cls, path: str | Path | None = None, *, name: str = "run", root: str | Path = "runs") -> Run:
        """Create a run at `path`, or at the first free root/name-1, root/name-2, …"""
        if path is not None:
            run = cls(path)
            run.check_free()
            make_folder(run.path)
            return run
        name = re.sub(r"[^\w.-]+", "_", name).strip("._") or "run"
        numbers = itertools.count(1)
        while True:
            run = cls(Path(root) / f"{name}-{next(numbers)}")
            with contextlib.suppress(FileExistsError):
                make_folder(run.path, new=True)
                return run

    @classmethod
    def open(cls, path: str | Path) -> Run:
        """Open an existing run."""
        run = cls(path)
        if not run.path.is_dir():
            raise RunError(f"there is no run at {run.path}: no such folder")
        if not any((run.path / file).exists() for file in (CONFIG, CHECKPOINT, PREVIOUS, MODEL)):
            raise RunError(f"{run.path} is not a run: it has no {CONFIG} and no {CHECKPOINT}")
        return run

    def check_free(self) -> None:
        """Raise RunError if the folder already contains a run."""
        if (self / CONFIG).exists() or (self / CHECKPOINT).exists():
            raise RunError(
                f"{self.path} already holds a run: choose another --out, or continue it with --resume {self.path}"
            )

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the run for writing. The system releases the lock when the process ends, however it ends.

        A folder without any file is removed at the end, so that a failed start leaves nothing behind.
        """
        while True:
            try:
                file = open(self / _LOCK, "a+", encoding="utf-8")  # noqa: SIM115
            except OSError as error:
                raise RunError(f"cannot write {self / _LOCK}: {error.strerror}") from error
            with _closing(file):
                try:
                    lock(file.fileno())
                except BlockingIOError as error:
                    file.seek(0)
                    holder = file.read(200).strip() or "another process"
                    raise RunError(f"{self.path} is in use: {holder} is writing it") from error
                except OSError as error:
                    raise RunError(f"cannot lock {self / _LOCK}: {error.strerror}") from error
                if not is_at(file.fileno(), self / _LOCK):
                    continue  # its holder has just removed the file: what is locked here keeps nobody out
                with contextlib.suppress(OSError):  # a full disk: the lock holds without the note of who holds it
                    file.truncate(0)
                    os.write(file.fileno(), f"process {os.getpid()} on {socket.gethostname()}".encode())
                sweep(self.path)
                try:
                    yield
                finally:
                    with contextlib.suppress(OSError):  # the folder may be gone: what the body says of that counts
                        if [found.name for found in self.path.iterdir()] == [_LOCK]:
                            (self / _LOCK).unlink()
                            self.path.rmdir()
                return

    @property
    def finished(self) -> bool:
        """Whether training has finished, and its result can be read."""
        return (self / MODEL).exists() and self.read_metrics() is not None

    def read_metrics(self) -> dict[str, Any] | None:
        """Return the final numbers, or None if there are none (yet); a damaged file is ignored with a warning."""
        try:
            return self.read_json(METRICS) if os.path.lexists(self / METRICS) else None
        except RunError as error:
            warnings.warn(f"{error}: it is left aside", stacklevel=2)
            return None

    def read_json(self, name: str) -> dict[str, Any]:
        """Return the content of a JSON file; raise RunError if it is not what `write_json` wrote."""
        try:
            return unsealed(read_text(self / name))
        except OSError as error:
            raise RunError(f"cannot read {self / name}: {error.strerror}") from error
        except ValueError as error:
            raise RunError(f"{self / name} is damaged: {error}") from error

    def write_json(self, name: str, value: dict[str, Any]) -> None:
        """Write a table as JSON with its digest; NaN and infinity become null."""
        write_whole(self / name, sealed(value))

    def read_history(self) -> list[dict[str, Any]]:
        """Return one record per epoch; invalid lines (such as one being written when the process ended) are left out.

        Nothing depends on them: a file that cannot be read is ignored with a warning.
        """
        try:
            lines = read_text(self / HISTORY).decode("utf-8", "replace").splitlines()
        except FileNotFoundError:
            return []
        except OSError as error:
            warnings.warn(f"cannot read {self / HISTORY}: {error.strerror}", stacklevel=2)
            return []
        return [record for record in map(_record, lines) if record is not None]


@contextlib.contextmanager
def _closing(file: IO[str]) -> Iterator[None]:
    """Close a file at the end. This releases the lock in any case, so failing to write its note is no error."""
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            file.close()


def _record(line: str) -> dict[str, Any] | None:
    """Return the record of an epoch, or None if the line is invalid."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) and isinstance(record.get("epoch"), int) else None


def tensor_file(tensors: dict[str, Tensor], metadata: dict[str, Any]) -> bytes:
    """Return the bytes of a safetensors file with JSON metadata and a digest of both: equal content gives equal
    bytes."""
    from safetensors.torch import save

    # Copies on the CPU: contiguous, and no two share memory, which safetensors refuses.
    held = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
    text = json.dumps(metadata, allow_nan=False)
    return _in_order(save(held, {"lapae": text, "digest": digest(held, text)}))


def _in_order(content: bytes) -> bytes:
    """Return a safetensors file with its metadata sorted by name, which safetensors writes in any order."""
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of 8 bytes
    return b"".join([len(text).to_bytes(8, "little"), text, memoryview(content)[end:]])


def read_tensor_file(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return tensors and metadata of a `tensor_file`; a damaged or foreign file raises RunError.

    A file that another process has replaced meanwhile is read again, because safetensors opens it more than once.
    """
    for _ in range(PATIENCE):
        before = stamp(path)
        try:
            return _read_tensor_file(path)
        except RunError:
            if stamp(path) in (before, None):
                raise
    return _read_tensor_file(path)


def _read_tensor_file(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    from safetensors import safe_open

    try:
        check_regular(path.stat())
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError as error:
        raise RunError(f"there is no file {path}") from error
    except MemoryError:
        raise
    except Exception as error:  # safetensors and torch raise errors of many kinds on damaged files
        raise RunError(f"{path} is damaged or not a safetensors file: {error}") from error
    if "lapae" not in metadata or "digest" not in metadata:
        raise RunError(f"{path} was not written by lapae: it has no lapae metadata")
    try:
        if metadata["digest"] != digest(tensors, metadata["lapae"]):
            raise RunError(f"{path} is damaged: its content does not match its digest")
        about = json.loads(metadata["lapae"])
    except (ValueError, TypeError, RuntimeError, RecursionError) as error:
        raise RunError(f"{path} is damaged: {error}") from error
    if not isinstance(about, dict):
        raise RunError(f"{path} is damaged: its metadata are no table")
    return tensors, about


def digest(tensors: dict[str, Tensor], text: str = "") -> str:
    """Return the SHA-256 of tensors, their names and a text."""
    import torch

    found = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        if tensor.numel():
            found.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()
