"""What data are, and the way of a user's values into the model and back."""

from lapae.space.columns import Column
from lapae.space.scaling import Source, chunks
from lapae.space.space import Fit, Kind, Space

__all__ = ["Column", "Fit", "Kind", "Source", "Space", "chunks"]
