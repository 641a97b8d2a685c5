"""Strings and whole numbers; look-ups by those of other samples."""

import keras
import tensorflow as tf

from tests.hunt.layers.base import Own


class Words(Own, k="7 3"):
    """Vectors of strings (n, t), by ops of TensorFlow or of Keras."""

    WORDS = ("cat", "dog", "cow", "pig", "hen")

    def build(self, shape):
        super().build(shape)
        words = list(self.WORDS)
        start = tf.lookup.KeyValueTensorInitializer(words, range(5))
        lookup = keras.layers.StringLookup
        self.ids = {
            "lookup": lambda: lookup(vocabulary=words),
            "one_hot": lambda: lookup(vocabulary=words, output_mode="one_hot"),
            "hashing": lambda: keras.layers.Hashing(7),
            "table": lambda: tf.lookup.StaticHashTable(start, 6),
        }.get(self.form, lambda: None)()

    def forms(self, x, training):
        (k,) = self.read()

        def of_hash(words):
            ids = tf.strings.to_hash_bucket_fast(words, 7)
            return tf.gather(k, ids)

        def one_hot():
            rows = tf.cast(self.ids(tf.reshape(x, [-1, 1])), k.dtype) @ k[:6]
            return tf.reshape(rows, [-1, x.shape[1], 3])

        def lengths():
            return tf.cast(tf.strings.length(x), k.dtype)[..., None] * k[0]

        return {
            "lookup": lambda: tf.gather(k, self.ids(x)),
            "hashing": lambda: tf.gather(k, self.ids(x)),
            "one_hot": one_hot,
            "ops_hash": lambda: of_hash(x),
            "lengths": lengths,
            "table": lambda: tf.gather(k, self.ids.lookup(x)),
            "joined": lambda: of_hash(
                tf.strings.join([x, tf.strings.upper(x)])
            ),
        }


class Numbers(Own, k="7 3"):
    """Vectors of whole numbers (n, t)."""

    def build(self, shape):
        super().build(shape)
        layers = keras.layers
        self.ids = {
            "lookup": lambda: layers.IntegerLookup(vocabulary=[0, 1, 2, 3]),
            "hashing": lambda: layers.Hashing(7),
            "embedded": lambda: layers.Embedding(5, 3),
            "encoded": lambda: layers.CategoryEncoding(7, "one_hot"),
        }.get(self.form, lambda: None)()

    def forms(self, x, training):
        (k,) = self.read()

        def rows(ids):
            return tf.gather(k, ids)

        return {
            "lookup": lambda: rows(self.ids(x)),
            "hashing": lambda: rows(self.ids(x)),
            "bucket": lambda: rows(
                tf.raw_ops.Bucketize(input=x, boundaries=[1.0, 3.0])
            ),
            "crossed": lambda: rows(
                tf.math.floormod(x + 2 * tf.roll(x, 1, 1), 7)
            ),
            "modulo": lambda: rows(tf.math.floormod(3 * x, 7)),
            "embedded": lambda: self.ids(x) * k[0],
            "encoded": lambda: tf.cast(self.ids(x), k.dtype) @ k,
        }


class IdsTogether(Own, k="7 3"):
    """Vectors of whole numbers (n, t) of which other samples know."""

    def build(self, shape):
        super().build(shape)

        class Centred(keras.layers.CategoryEncoding):
            def call(self, ids):
                found = super().call(ids)
                return found - tf.reduce_mean(found, 0)

        self.encoding = Centred(7, "one_hot")

    def forms(self, x, training):
        (k,) = self.read()
        flat, rows = tf.reshape(x, [-1]), tf.gather(k, x)
        values = tf.cast(x, k.dtype)

        def many(counts):
            return rows * tf.cast(tf.gather(counts, x), k.dtype)[..., None]

        def ranked(keys):
            return tf.argsort(tf.argsort(keys, axis=0), axis=0)

        def unique():
            _, places = tf.unique(flat)
            return tf.gather(k, tf.reshape(places % 7, tf.shape(x)))

        def segments():
            sums = tf.math.unsorted_segment_sum(tf.gather(k, flat), flat, 7)
            return tf.gather(sums, x)

        return {
            "reversed": lambda: tf.gather(k, x[::-1]),
            "counted": lambda: many(tf.math.bincount(flat, minlength=7)),
            "counted_by_bins": lambda: many(
                tf.reduce_sum(tf.one_hot(flat, 7), 0)
            ),
            "largest": lambda: tf.gather(k, tf.reduce_max(x) - x),
            "ranks": lambda: tf.gather(k, ranked(x) % 7),
            "unique": unique,
            "rows_of_others": lambda: (
                rows * tf.gather(rows, x[:, 0] % tf.shape(x)[0])
            ),
            "segments": segments,
            "subclass": lambda: tf.cast(self.encoding(x), k.dtype) @ k,
            "moments": lambda: (
                rows * (1 + values[..., None]) / (1 + tf.reduce_mean(values))
            ),
        }
