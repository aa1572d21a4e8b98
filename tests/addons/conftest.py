"""Commands of add-ons are tested as all others, with the same sessions."""

from tests.cli.conftest import _terminal, here, lab, own_lab, say, sessions

__all__ = ["_terminal", "here", "lab", "own_lab", "say", "sessions"]
