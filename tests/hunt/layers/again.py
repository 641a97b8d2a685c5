"""One weight tensor used again, behind its own use."""

import tensorflow as tf

from tests.hunt.layers.base import (
    Own,
    derived,
    derived_by_variable,
    of_features,
    repeated,
)


class Again(Own, k="d d", b="d"):
    """A loop with a weight behind a loop with the same weight."""

    def forms(self, x, training):
        k, b = self.read()
        # Made of a weight once, and used often.
        made = tf.tanh(k) * b

        def dot(h, w):
            return tf.tanh(tf.tensordot(h, w, 1))

        def times(h, w):
            return tf.sin(h * w) + h

        def loop(h, w, step=dot, turns=2):
            return repeated(h, lambda h: step(h, w), turns)

        def mapped(h, w, step=dot):
            return tf.map_fn(lambda row: step(row, w), h)

        return {
            "while_loop": lambda: loop(loop(x, k), k),
            "in_one_turn": lambda: loop(
                x, k, lambda h, w: dot(dot(h, w) + x, w)
            ),
            "nested": lambda: loop(
                x, k, lambda h, w: loop(loop(h, w), w, turns=1)
            ),
            "python": lambda: dot(dot(dot(x, k) + x, k) * x, k),
            "loop_and_outside": lambda: dot(loop(x, k), k),
            "outside_and_loop": lambda: loop(dot(x, k), k) + dot(x, k),
            "map_fn": lambda: mapped(mapped(x, k), k),
            "mapped_loop": lambda: mapped(mapped(x, k, loop), k, loop),
            "transposed": lambda: loop(loop(x, k), tf.transpose(k)),
            "vector": lambda: loop(loop(x, b, times), b, times),
            "mapped_vector": lambda: mapped(mapped(x, b, times), b, times),
            "row": lambda: loop(loop(x, k[0], times), k[0], times),
            "made": lambda: loop(loop(x, made), made),
        }


class AgainComplex(Own, k="d d", i="d d"):
    """A complex weight behind itself; half precision has none."""

    WIDE = "product filter loop in_one_turn conjugate einsum only_imaginary"

    def call(self, x, training=None):
        if self.form == "phase":
            # The same as pairs of real numbers.
            k, _ = self.read()
            c, s = tf.cos(k[0]), tf.sin(k[0])
            real, imag = x * c - tf.tanh(x) * s, x * s + tf.tanh(x) * c
            return real * c - imag * s
        found = super().call(x)
        return tf.math.real(found) + tf.math.imag(found)

    def forms(self, x, training):
        k, i = self.read()
        w, z = tf.complex(k, i), tf.complex(x, tf.sin(x))
        imaginary = tf.complex(tf.zeros_like(i), i)

        def bent(z):
            return tf.complex(tf.tanh(tf.math.real(z)), tf.math.imag(z))

        def dot(z, w=w):
            return bent(tf.tensordot(z, w, 1))

        def times(z, w=w):
            return bent(z * w[0])

        def filtered(z):
            return bent(tf.signal.ifft(tf.signal.fft(z) * w[0]))

        def einsum(z):
            return bent(tf.einsum("...d,de->...e", z, w))

        return {
            "phase": lambda: x,
            "product": lambda: times(times(z)),
            "filter": lambda: filtered(filtered(z)),
            "loop": lambda: repeated(repeated(z, dot), dot),
            "in_one_turn": lambda: repeated(z, lambda z: times(times(z) + z)),
            "conjugate": lambda: dot(dot(z), tf.transpose(w, conjugate=True)),
            "einsum": lambda: einsum(einsum(z)),
            "only_imaginary": lambda: times(times(z, imaginary), imaginary),
        }


class AgainDerived(Own, k="d d", b="d"):
    """A gradient of one's own around a weight, behind itself."""

    def forms(self, x, training):
        k, b = self.read()
        scaled = derived(
            lambda x, b: x * b,
            lambda dy, x, b: (dy * b, of_features(dy * tf.tanh(x))),
        )
        axes = list(range(len(x.shape) - 1))
        product = derived(
            lambda x, k: tf.tensordot(x, k, 1),
            lambda dy, x, k: (
                tf.tensordot(dy, k, [[-1], [-1]]),
                tf.tensordot(tf.tanh(x), dy, [axes, axes]),
            ),
        )
        quantised = derived(lambda k: tf.round(4 * k) / 4, lambda dk, k: dk)(k)

        def loop(h, step, w):
            return repeated(h, lambda h: tf.tanh(step(h, w)) + x)

        @tf.recompute_grad
        def again(h):
            return tf.tanh(tf.tensordot(h, self.k, 1))

        def variable(x):
            return derived_by_variable(x, self.b)

        return {
            "vector": lambda: scaled(tf.sin(scaled(x, b)) + x, b),
            "kernel": lambda: product(tf.tanh(product(x, k)), k),
            "in_loop": lambda: loop(x, scaled, b),
            "loop_behind_loop": lambda: loop(loop(x, scaled, b), scaled, b),
            "variable": lambda: variable(tf.sin(variable(x))),
            "straight": lambda: tf.tensordot(
                tf.tanh(tf.tensordot(x, quantised, 1)), quantised, 1
            ),
            "recompute": lambda: again(again(x) + x),
            "inside_and_outside": lambda: scaled(x, b) * b + scaled(x * b, b),
            "kernel_in_loop": lambda: loop(loop(x, product, k), product, k),
        }
