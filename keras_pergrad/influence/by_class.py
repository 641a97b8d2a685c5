"""Answers about factors that follow from their class."""

from typing import Any

from keras_pergrad.factors import SampleGradients


def answer(question: Any, factor: SampleGradients, *arguments: Any) -> Any:
    """Ask a question of a factor that classes answer in their own ways.

    A class that materialises other gradients than its base has none of the
    base's answers: it gets that of any factor.

    Args:
        question: a `functools.singledispatch` function of factors; itself it
            answers by what every factor can do.
        factor: the factor.
        arguments: what else the question takes.

    Example:

    >>> import functools
    >>> import tensorflow as tf
    >>> from keras_pergrad import factors
    >>> from keras_pergrad.influence.by_class import answer
    >>> @functools.singledispatch
    ... def entries(factor):
    ...     return factor.materialize().shape[1:].num_elements()
    >>> @entries.register
    ... def _(factor: factors.Outer):
    ...     return factor.x.shape[-1] * factor.dz.shape[-1]
    >>> answer(entries, factors.Outer(tf.ones((5, 2)), tf.ones((5, 3))))
    6
    """
    cls = type(factor)
    known = next(base for base in cls.__mro__ if base in question.registry)
    if known is not object and known.materialize is not cls.materialize:
        known = object
    return question.registry[known](factor, *arguments)
