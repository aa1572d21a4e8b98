"""Calls that a scorer must refuse."""

from functools import partial

from tests.refusals import unrefused

differences = partial(unrefused, layer="scorer")
"""Return what differs from the errors of a table; a RunError must name the scorer."""
