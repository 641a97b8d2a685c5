"""The batches of private training, by sample or by user."""

import copy
import itertools
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.common.batches import map_tensors, pack_like, tensors_of
from keras_pergrad.common.callback_list import PreparesFit
from keras_pergrad.common.data_batches import drawn_from
from keras_pergrad.privacy.augmentation import Augmentation
from keras_pergrad.privacy.draws import draw_batch, views_seed
from keras_pergrad.privacy.mechanism import Mechanism
from keras_pergrad.privacy.phase import checksum
from keras_pergrad.privacy.random_access import batch_spec
from keras_pergrad.privacy.users import Users

#: The number of batches whose rows are drawn together.
_CHUNK_SIZE = 64


class PrivateBatches(PreparesFit):
    """The result of `PrivateTraining.batches`, for `fit(x=...)`."""

    # The ledger of the trained model determines the examples of each batch, so
    # a resumed run draws the batches that come next. `excluded_rows` are left
    # out by an audit.

    def __init__(
        self,
        source: Any,
        mechanism: Mechanism,
        users: Users | None = None,
        *,
        augment: Any = None,
    ):
        self.source = source
        self.mechanism = mechanism
        self.users: Users | None = users
        self.excluded_rows: np.ndarray = np.asarray((), int)
        self._source_spec: Any = batch_spec(source)
        #: Of what a step gets, and of what the model is called with.
        self.spec: Any = self._source_spec
        self.row_spec: Any = self._source_spec
        self.augment: Any = augment
        self._augmentation: Any = None
        if augment is not None:
            views = Augmentation(
                augment, mechanism.augmentations, self.spec, samples=source.size
            )
            self._augmentation = views
            self.spec, self.row_spec = views.spec, views.row_spec

    def prepare_fit(
        self, model: keras.Model, arguments: dict[str, Any]
    ) -> None:
        """Refuse a `fit` that adds no noise."""
        aggregation = model.gradient_mode.aggregation
        if aggregation is None or not aggregation.counts:
            is_x = arguments.get("x") is self
            name = "x" if is_x else "validation_data"
            raise ValueError(
                f"Private batches were given to fit() as {name}, but the model "
                "is not trained privately. Expected compile(gradient_mode="
                "private.gradient_mode) before, and private batches as x; or "
                f"arrays or a data set. Received: {self!r}"
            )

    def __len__(self) -> int:
        """How many batches an epoch has."""
        return self.mechanism.steps_per_epoch

    def __repr__(self) -> str:
        m = self.mechanism
        return (
            f"PrivateBatches({m.examples} examples, sampling={m.sampling!r}, "
            f"batch_size={m.batch_size})"
        )

    def without(self, rows: Any) -> "PrivateBatches":
        """Return them without some rows, as if these had never been there."""
        others = copy.copy(self)
        others.excluded_rows = np.asarray(rows, int)
        return others

    def facts(self) -> dict[str, str]:
        """Return what the record of a `Phase` has of the examples."""
        users, views = self.users, self._augmentation
        return {
            "data": self.source.checksum(),
            "users": "" if users is None else checksum([users.ids]),
            "augment": "" if views is None else views.checksum,
        }

    def batch(
        self, ledger: Any, step: int, part: int = 0, *, parts: int = 1
    ) -> Any:
        """Return the batch of an update, a structure of arrays."""
        rows = self.draw_rows(ledger, step, part, parts=parts)
        return self.take(rows, self._views_seed(ledger, step))

    def take(self, rows: np.ndarray, seed: Any = (0, 0)) -> Any:
        """Return some examples as a batch, with their views drawn by a seed."""
        batch = self.source.take(rows)
        if self._augmentation is None:
            return batch
        return self._augmentation(batch, rows, seed)

    def _views_seed(self, ledger, step):
        return views_seed(ledger.key, step, len(ledger.phases))

    def draw_rows(
        self, ledger: Any, step: int, part: int = 0, *, parts: int = 1
    ) -> np.ndarray:
        """Return the rows of the source that are in one batch."""
        key, phase = ledger.key, len(ledger.phases)
        chosen = draw_batch(
            self.mechanism, key, step, phase=phase, part=part, parts=parts
        )
        if len(self.excluded_rows):
            # Drawn first, so that all other draws are as they were.
            chosen = chosen[~np.isin(chosen, self.excluded_rows)]
        return chosen if self.users is None else self.users.rows(key)[chosen]

    def dataset(self, ledger: Any, strategy: Any) -> Any:
        """Return what `fit` takes: one epoch, or endless with replicas."""
        parts = strategy.num_replicas_in_sync
        if parts == 1:
            steps = len(self)
            batches = self._generate_batches(ledger, [0], 1, steps=steps)
            with_size = tf.data.experimental.assert_cardinality(steps)
            batches = batches.apply(with_size).prefetch(2)
            return drawn_from(batches, self.source.name)
        self.mechanism.selection.require_parts(self.mechanism, parts)

        def worker_dataset(context):
            count = parts // context.num_input_pipelines
            first = context.input_pipeline_id * count
            own_parts = range(first, first + count)
            return self._generate_batches(
                ledger, own_parts, parts, steps=None
            ).prefetch(2)

        return strategy.distribute_datasets_from_function(worker_dataset)

    def _generate_batches(self, ledger, own_parts, parts, *, steps):
        """Return batches of some parts in turn, from the ledger's position."""

        def rows_with_seeds():
            # Not `updates`: a step may count itself before its batch is drawn.
            step = first = ledger.epoch_start
            while steps is None or step < first + steps:
                for part in own_parts:
                    chosen = self.draw_rows(ledger, step, part, parts=parts)
                    yield chosen, self._views_seed(ledger, step)
                step += 1

        def rows():
            return (chosen for chosen, _ in rows_with_seeds())

        batches = self._take_batches(ledger, rows, len(own_parts))
        if self._augmentation is None:
            return batches
        draws: Any = tf.data.Dataset.from_generator(
            rows_with_seeds,
            output_signature=(
                tf.TensorSpec([None], tf.int64),
                tf.TensorSpec([2], tf.int64),
            ),
        )
        return tf.data.Dataset.zip((batches, draws)).map(
            lambda batch, draw: self._augmentation(batch, *draw),
            num_parallel_calls=tf.data.AUTOTUNE,
        )

    def _take_batches(self, ledger, rows, part_count):
        """Return the batches of the examples in `rows()`."""
        begun_epochs: list = []

        def batches():
            # Keras may begin an epoch twice, to build the model by a batch.
            period, first = part_count * len(self), ledger.epoch_start
            for count, chosen in enumerate(rows()):
                epoch, position = divmod(count, period)
                if not position and begun_epochs != [(first, epoch)]:
                    begun_epochs[:] = [(first, epoch)]
                    self.source.begin_epoch()
                batch = tensors_of(self.source.take(chosen))
                if position == period - 1:
                    self.source.end_epoch()
                yield batch

        from_generator = tf.data.Dataset.from_generator
        in_memory = self.source.tensors()
        if in_memory is None:
            examples = from_generator(
                batches, output_signature=tensors_of(self._source_spec)
            )
            return examples.map(
                lambda *tensors: pack_like(self._source_spec, tensors)
            )

        def chunks():
            # Rows of many batches in one array, and where each batch ends.
            row_sets = rows()
            while chunk := list(itertools.islice(row_sets, _CHUNK_SIZE)):
                ends = np.cumsum([0, *map(len, chunk)])
                yield np.concatenate(chunk), ends

        # Python is called rarely, and never for large arrays.
        spec = tf.TensorSpec([None], tf.int64)
        chunk_dataset: Any = from_generator(
            chunks, output_signature=(spec, spec)
        )
        chosen = chunk_dataset.flat_map(
            lambda all_rows, ends: tf.data.Dataset.range(
                tf.size(ends, tf.int64) - 1
            ).map(lambda k: all_rows[ends[k] : ends[k + 1]])
        )
        return chosen.map(
            lambda rows: map_tensors(lambda t: tf.gather(t, rows), in_memory),
            num_parallel_calls=tf.data.AUTOTUNE,
        )
