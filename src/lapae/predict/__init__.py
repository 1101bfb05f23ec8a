"""Codes and reconstructions with their uncertainty."""

from lapae.predict.mc import Prediction, draw_seeds, evaluating, predict, predict_blocks

__all__ = ["Prediction", "draw_seeds", "evaluating", "predict", "predict_blocks"]
