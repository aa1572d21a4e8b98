"""Settings of this project's own tests."""

from __future__ import annotations

from hypothesis import settings

# The same examples every time, and no time limit per example: a busy machine must not fail a rule.
settings.register_profile("steady", deadline=None, derandomize=True)
settings.load_profile("steady")
