"""A service that scores rows with an exported model and answers JSON: FastAPI, onnxruntime and numpy, no torch.

lapae export runs/mine -o model.onnx
pip install fastapi uvicorn
LAPAE_MODEL=model.onnx uvicorn --app-dir examples service:app

POST /score {"rows": [{"speed": 3.1, "colour": "red"}], "rate": 0.05, "reasons": 2}
GET /model
"""

from __future__ import annotations

import os
from typing import Any

from fastapi import FastAPI, HTTPException  # pyright: ignore[reportMissingImports]
from pydantic import BaseModel, Field  # pyright: ignore[reportMissingImports]

from lapae_runtime import Detector, InputError

MOST_ROWS = 1000
"""Rows of one request; more are for `lapae score`."""
detector = Detector.load(os.environ["LAPAE_MODEL"])
model = {"version": detector.version, "digest": detector.digest}
app = FastAPI(title="lapae")


class Request(BaseModel):
    """Rows of a table by the names of its columns; null is a missing value."""

    rows: list[dict[str, Any]] = Field(max_length=MOST_ROWS)
    rate: float = Field(0.05, gt=0, lt=1, description="false alarm rate")
    reasons: int = Field(2, ge=0, description="columns to name for each row")


@app.get("/model")
def about() -> dict[str, Any]:
    """Say which model it is, and what columns it takes."""
    return {**model, "columns": {field.name: field.kind for field in detector.fields}}


@app.post("/score")
def score(request: Request) -> dict[str, Any]:
    """Score rows: p-value, verdict and reasons of each."""
    try:
        found = detector.score(request.rows, rate=request.rate, reasons=request.reasons)
    except InputError as error:
        raise HTTPException(422, str(error)) from None
    return {"model": model, "rows": found.to_json()}
