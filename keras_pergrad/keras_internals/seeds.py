"""The seed of layers without a seed of their own.

Private name in use:
`keras.src.backend.common.global_state.get_global_attribute`.
"""

from keras.src.backend.common import global_state


def shared_seed_state():
    """Return the seed's variable, or None if no layer has asked for it yet."""
    # Keras's own getter would make it.
    seeds = global_state.get_global_attribute("global_seed_generator")
    return None if seeds is None else seeds.state
