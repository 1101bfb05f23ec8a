"""New data for a trained run: tables, arrays and folders of images, read block by block and checked against the run.

What does not fit (another shape, other columns, another range of values) is a `DataError` that says what came and what
was expected. Memory does not grow with the data: .csv and .npy files are read block by block.
"""

from lapae.data.inputs.arrays import ArrayInput
from lapae.data.inputs.base import Block, Input
from lapae.data.inputs.images import ImageInput
from lapae.data.inputs.opening import open_input
from lapae.data.inputs.tables import CsvInput

__all__ = ["ArrayInput", "Block", "CsvInput", "ImageInput", "Input", "open_input"]
