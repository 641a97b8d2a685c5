"""What `dot` and `sum_of_squares` cost after a clipped step.

Bare steps of two benchmark models at batch 64, in one process and in turns:
the plain one, the clipped one, and this with each question to all factors, for
a direction that is given. Prints milliseconds and plain steps.

    python -m benchmarks.extras.further_questions [--rounds 12] [model ...]
"""

import tensorflow as tf

from benchmarks.harness import bare_steps

#: Step → what is asked of factors, and of a direction for each.
QUESTIONS = {
    "clipped": lambda factors, direction: (),
    "clipped, dot": lambda factors, direction: tf.add_n(
        [factor.dot(d) for factor, d in zip(factors, direction)]
    ),
    "clipped, sum_of_squares": lambda factors, direction: [
        factor.sum_of_squares() for factor in factors
    ],
}


def steps_of(name):
    """Return functions of no arguments by their names."""
    make, loss, x, y = bare_steps.parts(name)
    rng = tf.random.Generator.from_seed(0)
    shapes = [v.shape for v in make().trainable_variables]
    direction = [rng.normal(shape) for shape in shapes]

    def asked(question):
        def step(*given):
            value, factors = bare_steps.clipped(*given)
            return value, question(factors, direction)

        return step

    steps = {"plain": bare_steps.plain}
    steps |= {kind: asked(question) for kind, question in QUESTIONS.items()}
    return {
        kind: bare_steps.traced(step, make(), loss, x=x, y=y)
        for kind, step in steps.items()
    }


if __name__ == "__main__":
    bare_steps.main(
        __doc__.splitlines()[0],
        steps_of,
        "plain",
        models=["transformer", "cifar10"],
        rounds=12,
    )
