"""Iterators that stand in for others in Keras's train functions.

Private names in use: `CompositeTensor._type_spec`, `TypeSpec._serialize`,
`_component_specs`, `_to_components`, `_from_components`.
"""

import tensorflow as tf


class StandIn(tf.data.Iterator):
    """An iterator in the place of another; one spec serves many calls."""

    def __init__(self, iterator, spec):
        self.iterator, self.spec = iterator, spec

    @property
    def element_spec(self):
        return self.iterator.element_spec

    @property
    def _type_spec(self):
        return self.spec

    def __iter__(self):
        return self

    def __next__(self):
        try:
            return self.get_next()
        except tf.errors.OutOfRangeError:
            raise StopIteration from None


class StandInSpec(tf.TypeSpec):
    """The type of a `StandIn`: the iterator's own, and what else is given."""

    def __init__(self, iterator_spec, *settings):
        self._parts = (iterator_spec, *settings)
        self._hash = hash(self._parts)

    def __hash__(self):
        return self._hash

    def __eq__(self, other):
        return self is other or super().__eq__(other)

    def is_subtype_of(self, other):
        return self is other or super().is_subtype_of(other)

    def _serialize(self):
        return self._parts

    @property
    def _component_specs(self):
        return self._parts[0]._component_specs

    # The iterator's own components: each level of types slows every call.
    def _to_components(self, value):
        return self._parts[0]._to_components(value.iterator)

    def _from_components(self, components):
        iterator = self._parts[0]._from_components(components)
        return self.value_type(iterator, self)
