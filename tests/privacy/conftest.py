"""A private training and its model, the same for each test."""

import pytest

from tests.privacy.tiny import model, private


@pytest.fixture
def training():
    return private()


@pytest.fixture
def net(training):
    return model(training)
