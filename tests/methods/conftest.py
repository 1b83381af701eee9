"""The settings of the tests in this folder."""
from dataclasses import replace

import pytest


@pytest.fixture(scope="session")
def settings(settings):
    """The embedded model's, which may ask in words here: scripts and rules reply, or its replies are only counted."""
    return replace(settings, instructions=True)
