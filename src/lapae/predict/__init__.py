"""Codes and reconstructions with their uncertainty."""

from lapae.predict.linearized import linearized
from lapae.predict.mc import draw_seeds, evaluating
from lapae.predict.moments import moments
from lapae.predict.prediction import Prediction
from lapae.predict.predictive import PREDICTIVES, Predictive, predict

__all__ = [
    "PREDICTIVES",
    "Prediction",
    "Predictive",
    "draw_seeds",
    "evaluating",
    "linearized",
    "moments",
    "predict",
]
