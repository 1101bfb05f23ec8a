"""Data: named sets, arrays, tables and folders of images, in four splits, and batches of them."""

from lapae.data.batches import Batches
from lapae.data.catalog import DataSet, data_sets, fetch, load
from lapae.data.data import Data
from lapae.data.opening import open_input
from lapae.data.reader import Block, Reader
from lapae.data.source import Source, Split
from lapae.errors import DataError

__all__ = [
    "Batches",
    "Block",
    "Data",
    "DataError",
    "DataSet",
    "Reader",
    "Source",
    "Split",
    "data_sets",
    "fetch",
    "load",
    "open_input",
]
