"""One weight tensor used again, behind its own use."""

import tensorflow as tf

from tests.hunt.layers.base import Own


class Again(Own):
    """A loop with a weight behind a loop with the same weight."""

    FORMS = (
        "while_loop",
        "in_one_turn",
        "nested",
        "python",
        "loop_and_outside",
        "outside_and_loop",
        "map_fn",
        "mapped_loop",
        "transposed",
        "vector",
        "mapped_vector",
        "row",
        "made",
    )

    def build(self, shape):
        d = shape[-1]
        self.k, self.b = self.weight(d, d), self.weight(d)

    def call(self, x):
        k, b = tf.convert_to_tensor(self.k), tf.convert_to_tensor(self.b)
        # Made of a weight once, and used often.
        made = tf.tanh(k) * b

        def dot(h, w):
            return tf.tanh(tf.tensordot(h, w, 1))

        def times(h, w):
            return tf.sin(h * w) + h

        def loop(h, w, step=dot, turns=2):
            return tf.while_loop(
                lambda i, h: i < turns,
                lambda i, h: (i + 1, step(h, w)),
                (0, h),
            )[1]

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
        }[self.form]()


class AgainComplex(Own):
    """A complex weight behind itself; half precision has none."""

    FORMS = (
        "product",
        "filter",
        "loop",
        "in_one_turn",
        "conjugate",
        "phase",
        "einsum",
        "only_imaginary",
    )
    SMOOTH = ("phase",)

    def build(self, shape):
        d = shape[-1]
        self.k, self.i = self.weight(d, d), self.weight(d, d)

    def call(self, x):
        k, i = tf.convert_to_tensor(self.k), tf.convert_to_tensor(self.i)
        if self.form == "phase":
            # The same as pairs of real numbers.
            c, s = tf.cos(k[0]), tf.sin(k[0])
            real, imag = x * c - tf.tanh(x) * s, x * s + tf.tanh(x) * c
            return real * c - imag * s
        w = tf.complex(k, i)
        z = tf.complex(x, tf.sin(x))

        def bent(z):
            return tf.complex(tf.tanh(tf.math.real(z)), tf.math.imag(z))

        def dot(z, w):
            return bent(tf.tensordot(z, w, 1))

        def times(z, w):
            return bent(z * w[0])

        def loop(z, step):
            return tf.while_loop(
                lambda i, z: i < 2, lambda i, z: (i + 1, step(z, w)), (0, z)
            )[1]

        def filtered(z):
            return bent(tf.signal.ifft(tf.signal.fft(z) * w[0]))

        def einsum(z):
            return bent(tf.einsum("...d,de->...e", z, w))

        found = {
            "product": lambda: times(times(z, w), w),
            "filter": lambda: filtered(filtered(z)),
            "loop": lambda: loop(loop(z, dot), dot),
            "in_one_turn": lambda: loop(
                z, lambda z, w: times(times(z, w) + z, w)
            ),
            "conjugate": lambda: dot(
                dot(z, w), tf.transpose(w, conjugate=True)
            ),
            "einsum": lambda: einsum(einsum(z)),
            "only_imaginary": lambda: times(
                times(z, tf.complex(tf.zeros_like(i), i)),
                tf.complex(tf.zeros_like(i), i),
            ),
        }[self.form]()
        return tf.math.real(found) + tf.math.imag(found)


class AgainDerived(Own):
    """A gradient of one's own around a weight, behind itself."""

    FORMS = (
        "vector",
        "kernel",
        "in_loop",
        "loop_behind_loop",
        "variable",
        "straight",
        "recompute",
        "inside_and_outside",
        "kernel_in_loop",
    )

    def build(self, shape):
        d = shape[-1]
        self.k, self.b = self.weight(d, d), self.weight(d)

    def call(self, x):
        k, b = tf.convert_to_tensor(self.k), tf.convert_to_tensor(self.b)
        axes = list(range(len(x.shape) - 1))

        @tf.custom_gradient
        def scaled(x, b):
            def back(dy):
                return dy * b, tf.reduce_sum(dy * tf.tanh(x), axes)

            return x * b, back

        @tf.custom_gradient
        def product(x, k):
            def back(dy):
                dk = tf.tensordot(tf.tanh(x), dy, [axes, axes])
                return tf.tensordot(dy, k, [[-1], [-1]]), dk

            return tf.tensordot(x, k, 1), back

        @tf.custom_gradient
        def straight(k):
            return tf.round(4 * k) / 4, lambda dk: dk

        def of_variable(x):
            @tf.custom_gradient
            def called(x):
                def back(dy, variables=None):
                    del variables
                    return dy * b, [tf.reduce_sum(dy * x, axes)]

                return x * self.b.value, back

            return called(x)

        def loop(h, step, w):
            return tf.while_loop(
                lambda i, h: i < 2,
                lambda i, h: (i + 1, tf.tanh(step(h, w)) + x),
                (0, h),
            )[1]

        @tf.recompute_grad
        def again(h):
            return tf.tanh(tf.tensordot(h, self.k, 1))

        quantised = straight(k)
        return {
            "vector": lambda: scaled(tf.sin(scaled(x, b)) + x, b),
            "kernel": lambda: product(tf.tanh(product(x, k)), k),
            "in_loop": lambda: loop(x, scaled, b),
            "loop_behind_loop": lambda: loop(loop(x, scaled, b), scaled, b),
            "variable": lambda: of_variable(tf.sin(of_variable(x))),
            "straight": lambda: tf.tensordot(
                tf.tanh(tf.tensordot(x, quantised, 1)), quantised, 1
            ),
            "recompute": lambda: again(again(x) + x),
            "inside_and_outside": lambda: scaled(x, b) * b + scaled(x * b, b),
            "kernel_in_loop": lambda: loop(loop(x, product, k), product, k),
        }[self.form]()
