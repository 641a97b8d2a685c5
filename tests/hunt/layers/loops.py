"""Weights inside loops and behind themselves; loops of all samples."""

import keras
import tensorflow as tf
from keras import ops

from tests.hunt.layers.base import Own, repeated


class Turns(Own, k="d d", b="d"):
    """A loop that goes round as often for any batch, for (n, d)."""

    def forms(self, x, training):
        k, b = self.read()

        def step(h):
            return tf.tanh(h @ k + x)

        def turns(most, body):
            return tf.while_loop(
                lambda i, h: i < most,
                lambda i, h: (i + 1, body(i, h)),
                (0, x),
            )[1]

        def swapped():
            return tf.while_loop(
                lambda i, h, g: i < 3,
                lambda i, h, g: (i + 1, g, step(h)),
                (0, x, tf.zeros_like(x)),
            )[1]

        def array():
            kept = tf.TensorArray(x.dtype, 3, element_shape=x.shape)
            for t in range(3):
                kept = kept.write(t, tf.sin(x * (t + 1)) @ k)
            return tf.reduce_sum(kept.stack() * tf.reshape(b, [1, 1, -1]), 0)

        def array_of_features():
            columns = tf.TensorArray(
                x.dtype, x.shape[1], clear_after_read=False
            ).unstack(tf.transpose(x))
            return turns(
                x.shape[1],
                lambda i, h: h * tf.cos(columns.read(i)[:, None]) + b,
            )

        own = tf.cast(
            tf.clip_by_value(3 * tf.abs(x[:, :1]), 0.0, 3.0), tf.int32
        )
        positive = tf.cast(tf.reduce_sum(b) > 0.0, tf.int32)
        return {
            "fixed": lambda: repeated(x, step, 3),
            "of_width": lambda: repeated(x, step, tf.shape(x)[1]),
            "of_weight": lambda: repeated(x, step, 1 + positive),
            "masked_count": lambda: turns(
                3, lambda i, h: tf.where(i < own, step(h), h)
            ),
            "nested": lambda: repeated(x, lambda h: repeated(h, step) * b),
            "swapped": swapped,
            "array": array,
            "array_of_features": lambda: array_of_features() @ k,
            "cond_inside": lambda: turns(
                3, lambda i, h: tf.cond(i > 1, lambda: step(h), lambda: h * b)
            ),
            "break_by_counter": lambda: turns(
                9, lambda i, h: tf.where(i < 2, step(h), h)
            ),
        }


class TurnsTogether(Own, k="d"):
    """A loop in which samples meet, or that they end together."""

    def call(self, x, training=None):
        return super().call(x) + x * (len(x.shape) - 1)

    def forms(self, x, training):
        k, zeros = self.k, tf.zeros_like(x)
        count = tf.cast(2 * tf.reduce_sum(tf.abs(x)), tf.int32)
        longest = tf.reduce_max(tf.cast(6 * tf.abs(x), tf.int32))

        def turns(goes_on, body, *start):
            return tf.while_loop(
                goes_on,
                lambda i, *h: (i + 1, *body(*h)),
                (0, *start),
                maximum_iterations=20,
            )[1]

        def until():
            return turns(
                lambda i, h: tf.reduce_sum(h * h) > 0.4,
                lambda h: (0.7 * h + 0.01 * k,),
                x,
            )

        def of_samples():
            rows = tf.TensorArray(x.dtype, 0, True, clear_after_read=False)
            last = rows.unstack(x).read(tf.shape(x)[0] - 1)
            return x + last * k

        return {
            "until_small": until,
            "sum_of_counts": lambda: repeated(
                x, lambda h: tf.sin(h) + k, count % 7
            ),
            "largest_count": lambda: turns(
                lambda i, h: i < longest, lambda h: (tf.sin(h) + k,), x
            ),
            "swapped_mean": lambda: turns(
                lambda i, *h: i < 3,
                lambda a, b, c: (b + x, c, tf.reduce_mean(b, 0) + zeros),
                *(x, x, zeros),
            ),
            "later_mean": lambda: turns(
                lambda i, *h: i < 4,
                lambda a, b, c: (a + tf.reduce_mean(b, 0) * k, c, x),
                *(x, zeros, zeros),
            ),
            "array_of_samples": of_samples,
            "scan": lambda: tf.scan(lambda a, e: 0.5 * a + e * k, x),
            "nested_until": lambda: repeated(x, lambda h: until() + h * k),
        }


class Steps(Own, k="d d"):
    """h ← tanh(x_t + h @ k) over the positions of (n, t, d)."""

    def forms(self, x, training):
        first, count = ops.zeros_like(x[:, 0]), x.shape[1]
        turned = ops.transpose(x, (1, 0, 2))

        def step(h, now):
            return ops.tanh(now + ops.matmul(h, self.k))

        def python():
            h = first
            for t in range(count):
                h = step(h, x[:, t])
            return h

        def loop(of):
            return of(
                lambda i, h: i < count,
                lambda i, h: (i + 1, step(h, turned[i])),
                (0, first),
            )[1]

        return {
            "python": python,
            "scan": lambda: ops.scan(
                lambda h, t: (step(h, t),) * 2, first, turned
            )[0],
            "while_loop": lambda: loop(tf.while_loop),
            "ops_while": lambda: loop(ops.while_loop),
            "fori": lambda: ops.fori_loop(
                0, count, lambda i, h: step(h, turned[i]), first
            ),
            "tf_scan": lambda: tf.scan(step, turned, first)[-1],
        }


class Loop(Own, k="d d"):
    """h ← tanh(x + h @ k) three times, for (n, d)."""

    def forms(self, x, training):
        def step(h):
            return tf.tanh(x + tf.matmul(h, self.k))

        def python(step=step):
            return step(step(step(x)))

        return {
            "python": python,
            "while_loop": lambda: repeated(x, step, 3),
            "fori": lambda: ops.fori_loop(0, 3, lambda i, h: step(h), x),
            "function": lambda: python(tf.function(step)),
            "unrolled_scan": lambda: ops.scan(
                lambda h, x: (step(h), None), x, ops.stack([x, x])
            )[0],
        }


class OverSamples(Own, k="d d"):
    """A function of one sample applied to each, for (n, d)."""

    def build(self, shape):
        super().build(shape)
        self.inner = keras.layers.Dense(shape[-1])
        self.inner.build((None, shape[-1]))

    def call(self, x, training=None):
        return self.inner(super().call(x))

    def forms(self, x, training):
        k = self.k

        def one(row):
            return tf.tanh(tf.linalg.matvec(k, row))

        return {
            "map_fn": lambda: tf.map_fn(one, x),
            "vectorized_map": lambda: tf.vectorized_map(one, x),
            "ops_map": lambda: ops.map(one, x),
            "ops_vectorized_map": lambda: ops.vectorized_map(one, x),
        }


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
