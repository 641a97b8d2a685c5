"""What a few samples show about a model: whether it keeps them apart.

The model is run, outside of any trace, on three samples and on two of them
alone, and what its layers then give is compared. It shows layers that mix
samples, `add_loss` terms that do, and layers that are called on tensors whose
first axis is not the samples', whatever the sizes happen to be. Nothing that
the model assigns is kept; one trial serves all steps.
"""

from keras_pergrad.trial.judgement import Trial, of, require
from keras_pergrad.trial.loss import require_apart

__all__ = ["Trial", "of", "require", "require_apart"]
