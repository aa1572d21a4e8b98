"""Settings of this project's own tests."""

from __future__ import annotations

import contextlib

# pytest loads this for `pytest --help` too, also where only the package itself is installed.
with contextlib.suppress(ModuleNotFoundError):
    from hypothesis import settings

    # The same examples every time, and no time limit for one: a busy machine must not fail a rule.
    settings.register_profile("steady", deadline=None, derandomize=True)
    settings.load_profile("steady")
