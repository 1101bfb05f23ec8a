"""Data: named sets, arrays, tables and folders of images, in four splits; and the batches that are drawn from them."""

from lapae.data.batches import Batches
from lapae.data.catalog import DataSet, data_sets, fetch, load
from lapae.data.data import Data
from lapae.data.source import Source, Split
from lapae.errors import DataError

__all__ = ["Batches", "Data", "DataError", "DataSet", "Source", "Split", "data_sets", "fetch", "load"]
