"""A case: a model, its data and how it is trained, as source text.

The source is what runs, so that a failure's script is the case itself.
"""

import dataclasses
import inspect
import re

import keras
import numpy as np

from tests.hunt import heads, layers, pool, together

HEADER = """\
import keras
import numpy as np
import tensorflow as tf
from keras import layers as L
from keras import ops

import keras_pergrad as kpg
"""
#: Exact in float32, in which optimizers hold it.
LEARNING_RATE = 0.125


@dataclasses.dataclass(frozen=True)
class Case:
    """What is drawn. Expressions are source; `h` is the layer before.

    Attributes:
        seed: of weights and data.
        n: the number of samples.
        inputs: the expression of the `keras.Input`.
        data: that of its values, by `rng`.
        blocks: expressions of the layers between.
        outputs: (layers, loss, targets) of each output.
        weights: the expression of the sample weights, or "None".
        class_weight: source, beside `weights` that say the same.
        loss_weights: source.
        dtype: a policy's name.
        mode: "vectorized" or "per_sample".
        microbatch: samples at a time in "accumulated" with that mode
            inside; None: not accumulated.
        clips: whether the step clips at the middle of all norms.
        execution: "graph", "eager", "xla", or "data set": as a graph for any
            number of samples, whose values are not known to the first trace.
        asks: what is looked at: "gradients" or "norms" by a function, or a
            "step" of training and what it leaves.
        kind: "functional" or "subclass".
        is_random: whether layers draw numbers.
        is_coupled: whether samples meet, so that nothing may be served.
        by_size: whether they follow the number of samples, so that they may
            be served where all samples are at hand, but not one by one.
        is_broken: whether the first sample's inputs are no numbers, so that
            it counts as zero.
    """

    seed: int
    n: int
    inputs: str
    data: str
    blocks: tuple
    outputs: tuple
    weights: str = "None"
    class_weight: str = "None"
    loss_weights: str = "None"
    dtype: str = "float32"
    mode: str = "vectorized"
    microbatch: int | None = None
    clips: bool = False
    execution: str = "graph"
    asks: str = "gradients"
    kind: str = "functional"
    is_random: bool = False
    is_coupled: bool = False
    by_size: bool = False
    is_broken: bool = False

    def source(self):
        """Defines `make()`, `x`, `y`, `sample_weight` and the loss."""
        lines = ["def make():", f"    x = h = {self.inputs}"]
        lines += [f"    h = {block}" for block in self.blocks]
        lines += [f"    out = [{', '.join(o[0] for o in self.outputs)}]"]
        # A list of one is another case: a call returns it without the list.
        alone = len(self.outputs) == 1 and self.seed % 2
        lines += [f"    return keras.Model(x, out{'[0]' if alone else ''})"]
        if self.kind == "subclass":
            lines[-1] = lines[-1].replace("return", "inner =")
            lines += ["    return Wraps(inner)"]
        lines += ["", "", f"rng = np.random.default_rng({self.seed})"]
        lines += [f"x = {self.data}"]
        targets = [f"{o[2]}" for o in self.outputs]
        losses = [o[1] for o in self.outputs]
        one = len(targets) == 1
        lines += [f"y = {targets[0] if one else listed(targets)}"]
        lines += [f"sample_weight = {self.weights}"]
        lines += [f"loss = {losses[0] if one else listed(losses)}"]
        lines += [f"loss_weights = {self.loss_weights}"]
        return "\n".join(lines) + "\n"

    def layer_sources(self):
        """The source of every layer of one's own that is used."""
        found, text = {}, self.source()
        for _ in range(2):
            for name in layers_by_name():
                if re.search(rf"\b{name}\b", text) and name not in found:
                    found[name] = inspect.getsource(layers_by_name()[name])
            text += "\n".join(found.values())
        order = sorted(found, key=lambda name: name not in ("Own",))
        return "\n\n".join(found[name] for name in order)

    def run(self):
        """The namespace after the source has run; the policy is set."""
        keras.config.set_floatx(
            "float64" if self.dtype == "float64" else "float32"
        )
        keras.config.set_dtype_policy(self.dtype)
        keras.utils.set_random_seed(self.seed)
        space = {}
        exec(compile(HEADER, "<case>", "exec"), space)
        space.update(layers_by_name())
        exec(compile(self.source(), "<case>", "exec"), space)
        floats = keras.config.floatx()
        for name in ("x", "y", "sample_weight"):
            space[name] = _cast(space[name], floats)
        return space

    @property
    def is_repeated(self):
        """Whether the forward pass sees a part of the samples at a time."""
        is_step = self.asks == "step"
        is_cut = self.microbatch is not None and self.microbatch < self.n
        if self.mode != "per_sample":
            return is_cut and is_step
        # Means over microbatches are of their batch gradients.
        is_batch = self.microbatch is not None and not self.clips and is_step
        return is_cut or not is_batch

    @property
    def must_refuse(self):
        """Whether nothing may be served."""
        return self.is_coupled or (self.by_size and self.is_repeated)

    @property
    def is_single(self):
        """Whether a layer computes in float32, whatever the policy."""
        return re.search(r"\('(single|cast)'\)", self.source()) is not None

    def names(self):
        """The names of its layers and losses, for statistics."""
        parts = [*self.blocks]
        for layers_on_h, loss, _ in self.outputs:
            parts += [layers_on_h, loss]
        pattern = r"(?:L|losses)\.\w+|\w+\('\w+'\)|lambda \w"
        found = re.findall(pattern, " ".join(parts))
        return {name.split(".")[-1] for name in found}


class Wraps(keras.Model):
    """A model with a `call` of its own."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def call(self, x, training=None):
        return self.inner(x, training=training)


def layers_by_name():
    """Every class of `layers`, and `Wraps`."""
    found = {
        name: value
        for name, value in vars(layers).items()
        if isinstance(value, type)
    }
    return {**found, "Wraps": Wraps}


def listed(items):
    return "[" + ", ".join(items) + "]"


def _cast(value, dtype):
    if isinstance(value, list):
        return [_cast(v, dtype) for v in value]
    if value is None or value.dtype.kind != "f":
        return value
    return value.astype(dtype)


_SHAPES = [(3,), (4,), (5,), (3, 4), (4, 2), (5, 3), (5, 5, 2), (3, 3, 3, 2)]
_CHANCES = {"own": 0.55, "keras": 0.45}
_REDUCTIONS = [None, None, "sum", "mean_with_sample_weight", "mean"]


def draw(seed, index):
    """The case number `index` of a seed."""
    rng = np.random.default_rng([seed, index])
    number = int(rng.integers(2**31))
    dtype = rng.choice(["float32"] * 6 + ["float64"] * 3 + ["mixed_bfloat16"])
    d = pool.Draw(rng, smooth=dtype == "mixed_bfloat16")
    fields = {"seed": number, "dtype": str(dtype)}
    fields["is_coupled"] = d.chance(0.3)
    fields["n"] = d.one(
        [2, 3, 4, 5] if fields["is_coupled"] else [1, 2, 3, 4, 5]
    )
    maker = _draw_coupled if fields["is_coupled"] else _draw_sound
    fields.update(maker(d, fields["n"]))
    fields["mode"] = d.one(["vectorized", "vectorized", "per_sample"])
    adds = any("AddsLoss" in block for block in fields["blocks"])
    share = 0.7 if adds or fields.get("by_size") else 0.25
    if d.chance(share) and not fields.get("is_random"):
        fields["microbatch"] = d.one([1, 2, 3])
    fields["clips"] = d.chance(0.7) and not fields.get("is_random")
    fields["execution"] = d.one(["graph"] * 50 + ["eager"] * 10 + ["xla"])
    fields["asks"] = d.one(["gradients", "norms", "step", "step"])
    fields["kind"] = d.one(["functional"] * 4 + ["subclass"])
    is_step = (fields["execution"], fields["asks"]) == ("graph", "step")
    # What holds for one number of samples shows where it is not known.
    if is_step and (number % 2 or "rows_of_few" in str(fields["blocks"])):
        fields["execution"] = "data set"
    is_float = "dtype" not in fields["inputs"]
    if fields["asks"] == "step" and fields["clips"] and is_float:
        fields["is_broken"] = not fields["is_coupled"] and d.chance(0.2)
    return Case(**fields)


def _draw_sound(d, n):
    fields, blocks = {}, []
    if d.chance(0.06):
        shape = _draw_words(d, n, fields, blocks)
    elif d.chance(0.15):
        t, rows, width = d.one([3, 4]), d.one([4, 5]), d.one([2, 3, 4])
        zero = d.chance(0.4)
        fields["inputs"] = f"keras.Input(({t},), dtype='int32')"
        fields["data"] = f"rng.integers({rows}, size=({n}, {t}))"
        if zero:
            fields["data"] += (
                f" * (np.arange({t}) < rng.integers(1, {t + 1}, size=({n}, 1)))"
            )
        blocks.append(f"L.Embedding({rows}, {width}, mask_zero={zero})(h)")
        if d.chance(0.2):
            blocks[-1] = f"Tied({rows}, {width})(h)"
            width = rows
        elif d.chance(0.2):
            blocks[-1] = (
                "(lambda e: L.Dot(2)([e(h), L.Activation('tanh')(e(h))]))"
                f"({blocks[-1].removesuffix('(h)')})"
            )
            width = t
        shape = (t, width)
    else:
        shape = d.one(_SHAPES)
        fields["inputs"] = f"keras.Input({shape})"
        fields["data"] = f"rng.normal(size={(n, *shape)})"
    fields["is_random"] = len(shape) < 4 and d.chance(0.07)
    count = d.one([1, 2, 2, 2, 3, 3, 4])
    at = int(d.rng.integers(count)) if fields["is_random"] else None
    for k in range(count):
        kind = "own" if d.chance(_CHANCES["own"]) else "keras"
        if not d.smooth and d.chance(0.06):
            kind = "kinked"
        if d.chance(0.15):
            kind = "again"
        kind = "random" if k == at else kind
        if len(shape) == 4:
            kind = "keras"
        made, shape = pool.block(d, shape, kind)
        blocks.append(made)
        if len(shape) > 2 and d.chance(0.4):
            made, shape = pool.smaller(d, shape)
            blocks.append(made)
    if d.chance(0.12) and not fields["is_random"]:
        fields["by_size"] = True
        blocks.append(f"Sized({d.one(layers.Sized.FORMS)!r})(h)")
    while len(shape) > 2 or (len(shape) == 2 and d.chance(0.6)):
        made, shape = pool.smaller(d, shape)
        blocks.append(made)
    fields["blocks"] = tuple(blocks)
    outputs, u = [], None
    options = heads.SOUND + heads.KINKED
    if d.smooth:
        # Keras cannot add up such losses of half precision.
        options = [h for h in heads.SOUND if not h[1].startswith(heads.PLAIN)]
    for _ in range(2 if d.chance(0.2) else 1):
        head = d.one(options)
        u = shape[-1] if head[0] == "h" else d.one([2, 3, 4])
        outputs.append(heads.write(head, d.one(_REDUCTIONS), n, u, shape))
    fields["outputs"] = tuple(outputs)
    if len(outputs) > 1 and d.chance(0.6):
        fields["loss_weights"] = "[0.7, 2.0]"
    plain = any(o[1].startswith(heads.PLAIN) for o in outputs)
    if d.chance(0.35) and not plain:
        rows = (n, *shape[:-1])
        size = (n, 1) if len(rows) == 2 and d.chance(0.5) else rows
        fields["weights"] = f"rng.choice([0.0, 0.5, 1.0, 2.0], size={size})"
        if (
            d.chance(0.3)
            and len(outputs) == len(shape) == 1
            and "Sparse" in (outputs[0][1])
        ):
            fields["class_weight"] = "{k: 0.5 + k for k in range(9)}"
            fields["weights"] = "0.5 + y"
    return fields


def _draw_words(d, n, fields, blocks):
    """Draws inputs of strings or whole numbers; the shape behind them."""
    t = d.one([2, 3])
    cls = d.one([layers.Words, layers.Numbers])
    fields["inputs"] = f"keras.Input(({t},), dtype='int32')"
    fields["data"] = f"rng.integers(5, size={(n, t)})"
    if cls is layers.Words:
        words = [*layers.Words.WORDS, "yak"]
        fields["inputs"] = f"keras.Input(({t},), dtype='string')"
        fields["data"] = f"np.array({words})[rng.integers(6, size={(n, t)})]"
    blocks.append(f"{cls.__name__}({d.one(cls.FORMS)!r})(h)")
    return t, 3


def _draw_coupled(d, n):
    if d.chance(0.08):
        return _draw_ids_together(d, n)
    width, positions = d.one([3, 4]), d.one([3, 4, n])
    shape = (width,) if d.chance(0.6) else (positions, width)
    fields = {
        "inputs": f"keras.Input({shape})",
        "data": f"rng.normal(size={(n, *shape)})",
    }
    blocks = [f"L.Dense({width}, activation='tanh')(h)"]
    if d.chance(0.5):
        kind = d.one(["own", "keras"])
        made, shape = pool.block(d, shape, kind)
        blocks.append(made)
    by_loss = d.chance(0.25)
    if not by_loss:
        made, shape = together.coupled(d, shape)
        blocks.append(made)
    if len(shape) == 2 and d.chance(0.7):
        made, shape = pool.smaller(d, shape)
        blocks.append(made)
    while by_loss and len(shape) > 1:
        made, shape = pool.smaller(d, shape)
        blocks.append(made)
    head = d.one(heads.COUPLED if by_loss else heads.SOUND[:8])
    u = shape[-1] if "Dense" not in head[0] else 3
    fields["outputs"] = (heads.write(head, None, n, u, shape),)
    fields["blocks"] = tuple(blocks)
    return fields


def _draw_ids_together(d, n):
    form = d.one(layers.IdsTogether.FORMS + 2 * ("subclass",))
    head = heads.write(d.one(heads.SOUND[:8]), None, n, 3, (3,))
    return {
        "inputs": "keras.Input((3,), dtype='int32')",
        "data": f"rng.integers(5, size=({n}, 3))",
        "blocks": (f"IdsTogether({form!r})(h)", "h[:, 0]"),
        "outputs": (head,),
    }
