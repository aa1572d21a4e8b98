"""A session on a cluster is tested as all others, in projects of its own."""

from tests.plugin.conftest import _own_machine, project

__all__ = ["_own_machine", "project"]
