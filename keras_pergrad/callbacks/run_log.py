"""Writes a callback's measurements as the records of one run."""

import os
import time

from keras_pergrad.runs import RunWriter


class RunLog:
    """The run of one `fit`.

    Args:
        log_dir: where runs are written.
        describe: gives the `RunInfo` for a name and a sketch size.
        run_name: the run's name, or None for a new one.
        resumes: whether a run of that name is gone on with.
        sketch: a `GradientSketch`.
        seed: what new names say of the seed, or None.

    Attributes:
        directory: of the run.

    Raises:
        OSError, ValueError: as `RunWriter.create` and `RunWriter.resume`.
    """

    def __init__(self, log_dir, describe, run_name, resumes, sketch, seed=None):
        make = RunWriter.resume if run_name and resumes else RunWriter.create
        if run_name is None:
            # Sorted by time; a few random digits for runs of one second.
            run_name = time.strftime("%Y%m%d-%H%M%S-")
            if seed is not None:
                run_name += f"seed{seed}-"
            run_name += os.urandom(3).hex()
        self._sketch = sketch
        self._writer = make(os.fspath(log_dir), describe(run_name, sketch.size))
        self.directory = self._writer.directory

    def add(self, step, epoch, found, gradient):
        """Records a `BatchGradient` and its mean gradient.

        Raises:
            OSError: it cannot be written.
        """
        whole, each = self._sketch(gradient)
        scalars = {
            "step": step,
            "epoch": epoch,
            "time": time.time(),
            "loss": found.loss,
            "gradient_norm": found.norm,
            "gradient_variance": found.variance,
            "gradient_noise_scale": found.noise_scale,
            "gradient_snr": found.snr,
            "gradient_repeat_deviation": found.repeat_deviation,
            "bitwise_equal_variables": found.bitwise_equal_variables,
        }
        self._writer.append(scalars, found.norms, found.variances, each, whole)

    def close(self):
        """Gives the run free."""
        self._writer.close()
