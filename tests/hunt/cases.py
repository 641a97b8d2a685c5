"""A case: a model, its data and how it is trained, as source text.

The source is what runs, so that a failure's script is the case itself.
"""

import dataclasses
import inspect
import re

import keras
import numpy as np

from tests.hunt import heads, layers, pool

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
    """What is drawn. Expressions are source; `h` is the layer before."""

    seed: int  # Of weights and data.
    n: int  # The number of samples.
    inputs: str  # The `keras.Input`.
    data: str  # Its values, by `rng`.
    blocks: tuple  # The layers between.
    outputs: tuple  # (layers, loss, targets) of each output.
    weights: str = "None"  # Those of samples.
    class_weight: str = "None"  # Beside `weights` that say the same.
    loss_weights: str = "None"
    dtype: str = "float32"  # A policy's name.
    mode: str = "vectorized"  # Or "per_sample".
    #: Samples at a time in "accumulated" with that mode inside.
    microbatch: int | None = None
    clips: bool = False  # At the middle of all norms.
    #: Or "eager", "xla", or "data set": as a graph for any number of samples,
    #: whose values are not known to the first trace.
    execution: str = "graph"
    #: Or "norms", both by a function; or a "step" and what it leaves.
    asks: str = "gradients"
    kind: str = "functional"  # Or "subclass".
    is_random: bool = False  # Layers draw numbers.
    is_coupled: bool = False  # Samples meet: nothing may be served.
    #: Layers follow the number of samples, so that they may be served where
    #: all samples are at hand, but not one by one.
    by_size: bool = False
    is_broken: bool = False  # The first sample is NaN: it counts as zero.

    def source(self):
        """Defines `make()`, `x`, `y`, `sample_weight` and the loss."""
        layers_on_h, losses, targets = zip(*self.outputs)
        steps = "".join(f"    h = {block}\n" for block in self.blocks)
        # A list of one is another case: a call returns it without the list.
        is_listed = len(losses) > 1 or self.seed % 2 == 0
        model = f"keras.Model(x, out{'' if is_listed else '[0]'})"
        return f"""\
def make():
    x = h = {self.inputs}
{steps}    out = [{", ".join(layers_on_h)}]
    return {f"Wraps({model})" if self.kind == "subclass" else model}


rng = np.random.default_rng({self.seed})
x = {self.data}
y = {_joined(targets)}
sample_weight = {self.weights}
loss = {_joined(losses)}
loss_weights = {self.loss_weights}
"""

    def layer_sources(self):
        """The source of every layer of one's own that is used."""
        found, text = {}, self.source()
        for _ in range(3):
            for name, value in layers.BY_NAME.items():
                if re.search(rf"\b{name}\b", text):
                    found[name] = inspect.getsource(value)
            text += "\n".join(found.values())
        return "\n\n".join(sorted(found.values(), key=_is_later))

    def run(self):
        """The namespace after the source has run; the policy is set."""
        keras.config.set_floatx(self.floatx)
        keras.config.set_dtype_policy(self.dtype)
        keras.utils.set_random_seed(self.seed)
        space = dict(layers.BY_NAME)
        exec(compile(HEADER + self.source(), "<case>", "exec"), space)
        for name in ("x", "y", "sample_weight"):
            space[name] = _cast(space[name], self.floatx)
        return space

    @property
    def floatx(self):
        """The float type of data and of what has no policy."""
        return "float64" if self.dtype == "float64" else "float32"

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
        pattern = r"(?:L|losses)\.\w+|\w+\('\w+'\)|lambda \w"
        text = f"{self.blocks} {[output[:2] for output in self.outputs]}"
        found = re.findall(pattern, text)
        return {name.split(".")[-1] for name in found}


def _joined(items):
    return items[0] if len(items) == 1 else f"[{', '.join(items)}]"


def _is_later(source):
    return not source.startswith("class Own(")


def _cast(value, dtype):
    if isinstance(value, list):
        return [_cast(v, dtype) for v in value]
    if value is None or value.dtype.kind != "f":
        return value
    return value.astype(dtype)


_SHAPES = [(3,), (4,), (5,), (3, 4), (4, 2), (5, 3), (5, 5, 2), (3, 3, 3, 2)]
_REDUCTIONS = [None, None, "sum", "mean_with_sample_weight", "mean"]


def draw(seed, index):
    """The case number `index` of a seed."""
    rng = np.random.default_rng([seed, index])
    number = int(rng.integers(2**31))
    dtype = rng.choice(["float32"] * 6 + ["float64"] * 3 + ["mixed_bfloat16"])
    d = pool.Draw(rng, smooth=dtype == "mixed_bfloat16")
    is_coupled = d.chance(0.3)
    n = d.one([2, 3, 4, 5] if is_coupled else [1, 2, 3, 4, 5])
    fields = _draw_coupled(d, n) if is_coupled else _draw_sound(d, n)
    fields["mode"] = d.one(["vectorized", "vectorized", "per_sample"])
    is_random, blocks = fields.get("is_random", False), str(d.blocks)
    if is_random:
        # "per_sample" draws anew for each sample.
        fields["mode"] = "vectorized"
    share = 0.7 if "AddsLoss" in blocks or fields.get("by_size") else 0.25
    if d.chance(share) and not is_random:
        fields["microbatch"] = d.one([1, 2, 3])
    fields["clips"] = d.chance(0.7) and not is_random
    fields["execution"] = d.one(["graph"] * 50 + ["eager"] * 10 + ["xla"])
    fields["asks"] = d.one(["gradients", "norms", "step", "step"])
    fields["kind"] = d.one(["functional"] * 4 + ["subclass"])
    is_step = fields["asks"] == "step"
    # What holds for one number of samples shows where it is not known.
    unknown = number % 2 or "rows_of_few" in blocks
    if is_step and fields["execution"] == "graph" and unknown:
        fields["execution"] = "data set"
    if is_step and fields["clips"] and "dtype" not in d.inputs:
        fields["is_broken"] = not is_coupled and d.chance(0.2)
    return Case(
        seed=number,
        n=n,
        inputs=d.inputs,
        data=d.data,
        blocks=tuple(d.blocks),
        dtype=str(dtype),
        is_coupled=is_coupled,
        **fields,
    )


def _draw_sound(d, n):
    if d.chance(0.06):
        t = d.one([2, 3])
        if d.chance(0.5):
            words = [*layers.BY_NAME["Words"].WORDS, "yak"]
            data = f"np.array({words})[rng.integers(6, size={(n, t)})]"
            d.start((t,), data, "string")
            d.add(d.filled("{Words}(h)"))
        else:
            d.start((t,), f"rng.integers(5, size={(n, t)})", "int32")
            d.add(d.filled("{Numbers}(h)"))
    elif d.chance(0.15):
        _draw_ids(d, n)
    else:
        shape = d.one(_SHAPES)
        d.start(shape, f"rng.normal(size={(n, *shape)})")
    fields = {"is_random": len(d.shape) < 4 and d.chance(0.07)}
    count = d.one([1, 2, 2, 2, 3, 3, 4])
    at = int(d.rng.integers(count)) if fields["is_random"] else None
    for k in range(count):
        kind = "own" if d.chance(0.55) else "keras"
        if not d.smooth and d.chance(0.06):
            kind = "kinked"
        if d.chance(0.15):
            kind = "again"
        kind = "random" if k == at else kind
        d.block("keras" if len(d.shape) == 4 else kind)
        if len(d.shape) > 2 and d.chance(0.4):
            d.smaller()
    if d.chance(0.12) and not fields["is_random"]:
        fields["by_size"] = True
        d.add(d.filled("{Sized}(h)"))
    while len(d.shape) > 2 or (len(d.shape) == 2 and d.chance(0.6)):
        d.smaller()
    # Keras cannot add up losses of one's own of half precision.
    options = heads.KERAS + (heads.OWN + heads.KINKED) * (not d.smooth)
    outputs, u = [], None
    for _ in range(2 if d.chance(0.2) else 1):
        head = d.one(options)
        u = d.shape[-1] if head[0] == "h" else d.one([2, 3, 4])
        outputs.append(heads.write(head, d.one(_REDUCTIONS), n, u, d.shape))
    fields["outputs"] = tuple(outputs)
    if len(outputs) > 1 and d.chance(0.6):
        fields["loss_weights"] = "[0.7, 2.0]"
    plain = any(o[1].startswith(heads.PLAIN) for o in outputs)
    if d.chance(0.35) and not plain:
        rows = (n, *d.shape[:-1])
        size = (n, 1) if len(rows) == 2 and d.chance(0.5) else rows
        fields["weights"] = f"rng.choice([0.0, 0.5, 1.0, 2.0], size={size})"
        is_one = len(outputs) == len(d.shape) == 1
        if d.chance(0.3) and is_one and "Sparse" in outputs[0][1]:
            fields["class_weight"] = "{k: 0.5 + k for k in range(9)}"
            fields["weights"] = "0.5 + y"
    return fields


def _draw_ids(d, n):
    """Draws a table and whole numbers, some with a mask."""
    t, rows, width = d.one([3, 4]), d.one([4, 5]), d.one([2, 3, 4])
    zero, data = d.chance(0.4), f"rng.integers({rows}, size=({n}, {t}))"
    if zero:
        kept = f"rng.integers(1, {t + 1}, size=({n}, 1))"
        data += f" * (np.arange({t}) < {kept})"
    d.start((t,), data, "int32")
    table = f"L.Embedding({rows}, {width}, mask_zero={zero})"
    if d.chance(0.2):
        d.add(f"Tied({rows}, {width})(h)")
    elif d.chance(0.2):
        dot = "L.Dot(2)([e(h), L.Activation('tanh')(e(h))])"
        d.add(f"(lambda e: {dot})({table})")
    else:
        d.add(f"{table}(h)")


def _draw_coupled(d, n):
    by_loss = False
    if d.chance(0.08):
        d.start((3,), f"rng.integers(5, size=({n}, 3))", "int32")
        form = d.one([*layers.FORMS["IdsTogether"], "subclass", "subclass"])
        d.blocks += [f"IdsTogether({form!r})(h)", "h[:, 0]"]
    else:
        width, positions = d.one([3, 4]), d.one([3, 4, n])
        shape = (width,) if d.chance(0.6) else (positions, width)
        d.start(shape, f"rng.normal(size={(n, *shape)})")
        d.add(f"L.Dense({width}, activation='tanh')(h)")
        if d.chance(0.5):
            d.block(d.one(["own", "keras"]))
        by_loss = d.chance(0.25)
        if not by_loss:
            d.coupled()
        if len(d.shape) == 2 and d.chance(0.7):
            d.smaller()
        while by_loss and len(d.shape) > 1:
            d.smaller()
    head = d.one(heads.COUPLED if by_loss else heads.KERAS)
    u = 3 if "Dense" in head[0] else d.shape[-1]
    return {"outputs": (heads.write(head, None, n, u, d.shape),)}
