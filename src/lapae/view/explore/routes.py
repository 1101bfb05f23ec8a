"""The questions that the page may ask, each a function of the checked body of a request."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import CancelledError, ThreadPoolExecutor
from concurrent.futures import TimeoutError as Late
from http import HTTPStatus
from typing import Any, Literal, get_args

import numpy as np

from lapae.view.explore import requests
from lapae.view.explore.explorer import Explorer
from lapae.view.explore.requests import FARTHEST, BadRequest
from lapae.view.explore.uploads import MOST_BYTES, MOST_UPLOADED_ROWS, read_upload

MOST_SEEDS = 1000
PATIENCE = 30.0
"""Seconds that a request may wait for its turn and its answer."""
CELLS = 64
"""Rows of the map computed at a time, so that mouse moves are answered in between."""
MOST_HEATS = 32
Quantity = Literal["deviation", "volume"]
"""What the shade of a map may be."""


class Routes:
    """Answers of an explorer.

    The model works in one thread of its own, for one request at a time; a copy of its decoder measures paths and
    volumes in another, so that mouse moves are answered meanwhile.
    """

    def __init__(self, explorer: Explorer, opening: dict[str, Any]) -> None:
        self.explorer, self.opening = explorer, opening
        self.worker = ThreadPoolExecutor(1, thread_name_prefix="lapae-model")
        self.measurer = ThreadPoolExecutor(1, thread_name_prefix="lapae-geometry")
        self.heats: OrderedDict[Any, dict[str, Any]] = OrderedDict()
        self.heating = threading.Lock()
        image = explorer.display.kind == "image"
        self.most = explorer.model.space.most if image else None
        self.most_json = min(MOST_BYTES, 2**16 + 32 * int(np.prod(explorer.shape)))
        """Maximum number of bytes of a question: one sample and some room."""
        asked = (self.place, self.heat, self.path, self.item, self.find, self.look, self.complete)
        self.questions: dict[str, Callable[[bytes], dict[str, Any]]] = {answer.__name__: answer for answer in asked}

    def close(self) -> None:
        """End the threads; waiting requests are dropped."""
        for worker in (self.worker, self.measurer):
            worker.shutdown(wait=True, cancel_futures=True)

    def place(self, body: bytes) -> dict[str, Any]:
        """{axes, at, anchor} -> what is decoded there."""
        asked = requests.parse(body, {"axes", "at", "anchor"})
        a, b = (requests.number(v, "at") for v in requests.sequence(asked["at"], "at", 2))
        return self._work(self.explorer.place, self._axes(asked), (a, b), self._anchor(asked))

    def heat(self, body: bytes) -> dict[str, Any]:
        """{axes, anchor, of} -> a quantity in every cell of the map, row by row from the top.

        `of` is "deviation", the summed standard deviation, or "volume", the logarithm of the volume element.
        """
        asked = requests.parse(body, {"axes", "anchor", "of"})
        axes, anchor = self._axes(asked), self._anchor(asked)
        of = requests.one_of(asked["of"], "of", get_args(Quantity))
        key = (of, axes, None if anchor is None else anchor.tobytes())
        with self.heating:  # one map at a time, and each once
            if key not in self.heats:
                self.heats[key] = self._heat(of, axes, anchor)
                while len(self.heats) > MOST_HEATS:
                    self.heats.popitem(last=False)
            return self.heats[key]

    def _heat(self, of: str, axes: tuple[int, int], anchor: np.ndarray | None) -> dict[str, Any]:
        work, rows_of, side = self._work, self.explorer.heat, self.explorer.side
        if of == "volume":
            work, rows_of = self._measure, self.explorer.volume
            side = work(lambda: self.explorer.volume_side)
        step = max(1, CELLS // side)
        found: list[float] = []
        for row in range(0, side, step):
            found += work(rows_of, axes, anchor, range(row, min(row + step, side)))
        return {"heat": found, "side": side}

    def path(self, body: bytes) -> dict[str, Any]:
        """{axes, anchor, ends} -> the shortest path between two codes, and what is decoded along it."""
        asked = requests.parse(body, {"axes", "anchor", "ends"})
        n, size = self.explorer.space.codes.shape
        first, last = (requests.end(end, n, size) for end in requests.sequence(asked["ends"], "ends", 2))
        return self._measure(self.explorer.path, self._axes(asked), self._anchor(asked), (first, last))

    def item(self, body: bytes) -> dict[str, Any]:
        """{split, index} -> everything about that sample."""
        asked = requests.parse(body, {"split", "index"})
        splits = {name: len(split) for name, split in self.explorer.splits.parts.items()}
        split = requests.one_of(asked["split"], "split", list(splits))
        return self._work(self.explorer.item, split, requests.whole(asked["index"], "index", splits[split]))

    def find(self, body: bytes) -> dict[str, Any]:
        """{id} -> everything about the sample with that name, or at that row of the data set."""
        text = requests.parse(body, {"id"})["id"]
        if not isinstance(text, str):
            raise BadRequest(f"id: expected a text, got {requests.kind(text)}")
        where = self.explorer.splits.find(text.strip())
        if where is None:
            raise BadRequest(f"there is no sample {requests.told(text)} among the data")
        return self._work(self.explorer.item, *where)

    def look(self, body: bytes) -> dict[str, Any]:
        """{values} -> everything about a sample edited on the page."""
        return self._work(self.explorer.look, self._sample(requests.parse(body, {"values"})))

    def complete(self, body: bytes) -> dict[str, Any]:
        """{values, seed} -> completions of a sample whose missing values are null."""
        asked = requests.parse(body, {"values", "seed"})
        seed = requests.whole(asked["seed"], "seed", MOST_SEEDS)
        stored = self._sample(asked, for_completion=True)
        if not np.isnan(stored).any():
            raise BadRequest("values: nothing is missing, expected a null where a value is to be filled in")
        return self._work(self.explorer.complete, stored, seed)

    def upload(self, body: bytes, row: str) -> dict[str, Any]:
        """A file and the number of one of its samples -> everything about that sample."""
        if not (row.isascii() and row.isdigit() and len(row) <= 6):
            raise BadRequest(
                f"row: expected a whole number from 0 to {MOST_UPLOADED_ROWS - 1}, got {requests.told(row)}"
            )

        def found() -> dict[str, Any]:
            upload = read_upload(body, self.explorer.model, int(row))
            self._fits(upload.stored)
            return self.explorer.look(upload.stored) | {"row": upload.row, "n": upload.n, "note": upload.note}

        return self._work(found)

    def _axes(self, asked: dict[str, Any]) -> tuple[int, int]:
        return requests.axes(asked["axes"], len(self.explorer.space.directions))

    def _anchor(self, asked: dict[str, Any]) -> np.ndarray | None:
        return requests.code(asked["anchor"], self.explorer.space.codes.shape[1])

    def _sample(self, asked: dict[str, Any], *, for_completion: bool = False) -> np.ndarray:
        stored = requests.sample(asked["values"], self.explorer.shape, most=self.most)
        self._fits(stored, for_completion)
        return stored

    def _fits(self, stored: np.ndarray, for_completion: bool = False) -> None:
        """Check that the likelihood can handle these values."""
        if stored.dtype.kind != "f":
            return
        model = self.explorer.model
        if np.isnan(stored).any() and not (model.likelihood.missing or for_completion):
            raise BadRequest(f"missing values, which the {model.config.model.likelihood} likelihood cannot take")
        with np.errstate(over="ignore"):
            scaled = np.abs(model.space.convert(self.explorer.given(stored.astype(np.float64))))
        if np.isinf(scaled).any() or np.nanmax(scaled, initial=0.0) > FARTHEST:
            raise BadRequest(f"a value is more than {FARTHEST:,.0f} standard deviations away from the data")

    def _measure(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function in the thread of the geometry, which is made in the model's: it is a copy of the decoder."""
        self._work(lambda: self.explorer.geometry)
        return self._work(function, *arguments, worker=self.measurer)

    def _work(self, function: Callable[..., Any], *arguments: Any, worker: ThreadPoolExecutor | None = None) -> Any:
        """Call a function in the model's thread, or in another."""
        ending = BadRequest("the explorer is shutting down", HTTPStatus.SERVICE_UNAVAILABLE)
        try:
            future = (worker or self.worker).submit(function, *arguments)
        except RuntimeError:
            raise ending from None
        try:
            return future.result(PATIENCE)
        except CancelledError:
            raise ending from None
        except Late:
            future.cancel()
            raise BadRequest("the explorer is busy: try again", HTTPStatus.SERVICE_UNAVAILABLE) from None
