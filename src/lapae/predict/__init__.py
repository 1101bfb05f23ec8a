"""Codes and reconstructions with their uncertainty."""

from lapae.predict.linearized import linearized
from lapae.predict.mc import draw_seeds, evaluating
from lapae.predict.moments import moments
from lapae.predict.prediction import Prediction
from lapae.predict.predictive import PREDICTIVES, predict, predict_blocks

__all__ = [
    "PREDICTIVES",
    "Prediction",
    "draw_seeds",
    "evaluating",
    "linearized",
    "moments",
    "predict",
    "predict_blocks",
]
