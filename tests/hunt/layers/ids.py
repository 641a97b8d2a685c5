"""Strings and whole numbers; look-ups by those of other samples."""

import keras
import tensorflow as tf

from tests.hunt.layers.base import Own


class Words(Own):
    """Vectors of strings (n, t), by ops of TensorFlow or of Keras."""

    FORMS = (
        "lookup",
        "hashing",
        "one_hot",
        "ops_hash",
        "lengths",
        "table",
        "joined",
    )
    WORDS = ("cat", "dog", "cow", "pig", "hen")

    def build(self, shape):
        self.k = self.weight(7, 3)
        words = list(self.WORDS)
        if self.form in ("lookup", "one_hot"):
            mode = "int" if self.form == "lookup" else "one_hot"
            self.ids = keras.layers.StringLookup(
                vocabulary=words, output_mode=mode
            )
        if self.form == "hashing":
            self.ids = keras.layers.Hashing(7)
        if self.form == "table":
            start = tf.lookup.KeyValueTensorInitializer(words, range(5))
            self.ids = tf.lookup.StaticHashTable(start, 6)

    def call(self, words):
        k = tf.convert_to_tensor(self.k)

        def hashed(words):
            return tf.strings.to_hash_bucket_fast(words, 7)

        def one_hot():
            ids = tf.reshape(words, [-1, 1])
            rows = tf.cast(self.ids(ids), k.dtype) @ k[:6]
            return tf.reshape(rows, [-1, words.shape[1], 3])

        def lengths():
            lengths = tf.cast(tf.strings.length(words), k.dtype)
            return lengths[..., None] * k[0]

        return {
            "lookup": lambda: tf.gather(k, self.ids(words)),
            "hashing": lambda: tf.gather(k, self.ids(words)),
            "one_hot": one_hot,
            "ops_hash": lambda: tf.gather(k, hashed(words)),
            "lengths": lengths,
            "table": lambda: tf.gather(k, self.ids.lookup(words)),
            "joined": lambda: tf.gather(
                k, hashed(tf.strings.join([words, tf.strings.upper(words)]))
            ),
        }[self.form]()


class Numbers(Own):
    """Vectors of whole numbers (n, t)."""

    FORMS = (
        "lookup",
        "hashing",
        "bucket",
        "crossed",
        "modulo",
        "embedded",
        "encoded",
    )

    def build(self, shape):
        self.k = self.weight(7, 3)
        layers = keras.layers
        self.ids = {
            "lookup": lambda: layers.IntegerLookup(vocabulary=[0, 1, 2, 3]),
            "hashing": lambda: layers.Hashing(7),
            "embedded": lambda: layers.Embedding(5, 3),
            "encoded": lambda: layers.CategoryEncoding(7, "one_hot"),
        }.get(self.form, lambda: None)()

    def call(self, ids):
        k = tf.convert_to_tensor(self.k)
        return {
            "lookup": lambda: tf.gather(k, self.ids(ids)),
            "hashing": lambda: tf.gather(k, self.ids(ids)),
            "bucket": lambda: tf.gather(
                k, tf.raw_ops.Bucketize(input=ids, boundaries=[1.0, 3.0])
            ),
            "crossed": lambda: tf.gather(
                k, tf.math.floormod(ids + 2 * tf.roll(ids, 1, 1), 7)
            ),
            "modulo": lambda: tf.gather(k, tf.math.floormod(3 * ids, 7)),
            "embedded": lambda: self.ids(ids) * k[0],
            "encoded": lambda: tf.cast(self.ids(ids), k.dtype) @ k,
        }[self.form]()


class IdsTogether(Own):
    """Vectors of whole numbers (n, t) of which other samples know."""

    FORMS = (
        "reversed",
        "counted",
        "counted_by_bins",
        "largest",
        "ranks",
        "unique",
        "rows_of_others",
        "segments",
        "moments",
        "subclass",
    )

    def build(self, shape):
        self.k = self.weight(7, 3)

        class Centred(keras.layers.CategoryEncoding):
            def call(self, ids):
                found = super().call(ids)
                return found - tf.reduce_mean(found, 0)

        self.encoding = Centred(7, "one_hot")

    def call(self, ids):
        k = tf.convert_to_tensor(self.k)
        rows = tf.gather(k, ids)
        n = tf.shape(ids)[0]
        flat = tf.reshape(ids, [-1])

        def many(counts):
            return rows * tf.cast(tf.gather(counts, ids), k.dtype)[..., None]

        def ranked(keys):
            return tf.argsort(tf.argsort(keys, axis=0), axis=0)

        def unique():
            _, places = tf.unique(flat)
            return tf.gather(k, tf.reshape(places % 7, tf.shape(ids)))

        def segments():
            sums = tf.math.unsorted_segment_sum(tf.gather(k, flat), flat, 7)
            return tf.gather(sums, ids)

        return {
            "reversed": lambda: tf.gather(k, ids[::-1]),
            "counted": lambda: many(tf.math.bincount(flat, minlength=7)),
            "counted_by_bins": lambda: many(
                tf.reduce_sum(tf.one_hot(flat, 7), 0)
            ),
            "largest": lambda: tf.gather(k, tf.reduce_max(ids) - ids),
            "ranks": lambda: tf.gather(k, ranked(ids) % 7),
            "unique": unique,
            "rows_of_others": lambda: rows * tf.gather(rows, ids[:, 0] % n),
            "segments": segments,
            "subclass": lambda: tf.cast(self.encoding(ids), k.dtype) @ k,
            "moments": lambda: (
                rows
                * (1 + tf.cast(ids, k.dtype)[..., None])
                / (1 + tf.reduce_mean(tf.cast(ids, k.dtype)))
            ),
        }[self.form]()
