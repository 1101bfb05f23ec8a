"""Description of data, and conversion of a user's values to the model's space and back."""

from lapae.space.columns import Column
from lapae.space.layout import Range
from lapae.space.scaling import Source, chunks
from lapae.space.space import Fit, Kind, Space
from lapae.space.trained import for_trained

__all__ = ["Column", "Fit", "Kind", "Range", "Source", "Space", "chunks", "for_trained"]
