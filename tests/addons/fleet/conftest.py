"""A session on a cluster is tested as all others, in projects of its own."""

import pytest

from tests.plugin.conftest import _own_machine, project

__all__ = ["_own_machine", "project"]


@pytest.fixture(autouse=True)
def _terminal() -> None:
    """Nothing: the processes of a cluster are real ones, and no forks."""
