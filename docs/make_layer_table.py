"""Writes docs/layers.md: how each class in `keras.layers` is served.

Run it with the newest Keras after a rule was added.
"""

import pathlib
import sys

import keras

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

from tests import layer_table


def main():
    rows = []
    for name in layer_table.names():
        keras.backend.clear_session()
        rows.append(layer_table.examine(name))
        print(rows[-1])
    layer_table.PAGE.write_text(layer_table.page(rows))


if __name__ == "__main__":
    main()
