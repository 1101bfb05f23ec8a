"""What data are, and the way of a user's values into the model and back."""

from lapae.space.columns import Column
from lapae.space.scaling import Source, chunks
from lapae.space.space import Kind, Space

__all__ = ["Column", "Kind", "Source", "Space", "chunks"]
