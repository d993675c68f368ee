"""Data sets: find or fetch them, check them, hand them out as arrays.

`load_dataset("mnist")` reads what `fetch("mnist")` has put into the data folder; `dataset_from_arrays` makes a data set
of your own. Only numpy is needed to import this; Pillow and scikit-learn are asked for when a data set needs them.
"""

from __future__ import annotations

from jsam.errors import MissingDataError
from jsam.training.data.data_files import Progress, ProgressCallback
from jsam.training.data.dataset import Dataset, dataset_from_arrays
from jsam.training.data.dataset_status import describe_datasets
from jsam.training.data.fetching import FetchResult, fetch
from jsam.training.data.loading import load_dataset, load_writers

__all__ = [
    "Dataset",
    "FetchResult",
    "MissingDataError",
    "Progress",
    "ProgressCallback",
    "dataset_from_arrays",
    "describe_datasets",
    "fetch",
    "load_dataset",
    "load_writers",
]
