"""Writes the tables of docs/types.md: rules, proved models, refusals.

Run it after a rule or a further model was added.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import keras_pergrad  # noqa: F401
from tests import type_table

if __name__ == "__main__":
    text = type_table.PAGE.read_text(encoding="utf-8")
    type_table.PAGE.write_text(type_table.page(text), encoding="utf-8")
