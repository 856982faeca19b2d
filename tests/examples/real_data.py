"""The examples' real data, for tests; see `tests.real.need`."""

from __future__ import annotations

from pathlib import Path

from hvdgrab.examples import data
from hvdgrab.examples.common import World
from tests.real import need

NEEDED = {"m4_mlp": data.M4_WEEKLY, "lstm_wikitext2": data.WIKITEXT2}
"""By example; the others bring their data."""


def real_data(data_set: data.DataSet) -> Path:
    """The folder of a data set: fails in CI, skips elsewhere, where it is not here and cannot be downloaded."""
    try:
        return data.locate(data_set, World())
    except data.DataError as error:
        need(f"the data of {error}", present=False)
        raise
