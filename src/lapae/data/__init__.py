"""Data: named sets, arrays, tables and folders of images, in three splits; and the batches that are drawn from them."""

from lapae.data.batches import Batches
from lapae.data.catalog import DataSet, data_sets, fetch, load
from lapae.data.errors import DataError
from lapae.data.scaling import Scaling
from lapae.data.source import Data, Source, Split

__all__ = ["Batches", "Data", "DataError", "DataSet", "Scaling", "Source", "Split", "data_sets", "fetch", "load"]
