"""Score new data with an exported model, using only numpy and onnxruntime: neither torch nor lapae is imported.

detector = Detector.load("model.onnx")  # written by `lapae export`
found = detector.score([{"speed": 3.1, "colour": "red"}], reasons=2)
"""

from lapae_runtime.detector import Detector, Reason, Scored
from lapae_runtime.rows import InputError

__all__ = ["Detector", "InputError", "Reason", "Scored"]
