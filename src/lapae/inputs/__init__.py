"""New data for a trained run: tables, arrays and folders of images, read block by block and checked against the run.

What does not fit (another shape, other columns, another range of values) is a `DataError` that says what came and what
was expected. Memory does not grow with the data: .csv and .npy files are read block by block.
"""

from lapae.inputs.arrays import ArrayInput
from lapae.inputs.base import Block, Input
from lapae.inputs.images import ImageInput
from lapae.inputs.opening import open_input
from lapae.inputs.tables import CsvInput

__all__ = ["ArrayInput", "Block", "CsvInput", "ImageInput", "Input", "open_input"]
