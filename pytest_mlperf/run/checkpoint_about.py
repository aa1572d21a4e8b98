"""What a builder's Python says of itself: versions of what decides a build, and what it lacks."""

from __future__ import annotations

import tempfile
from functools import lru_cache
from pathlib import Path

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.run.child import Child
from pytest_mlperf.run.events import Fields, by_name, each, is_text
from pytest_mlperf.run.log_tail import log_tail
from pytest_mlperf.run.protocol import Event
from pytest_mlperf.run.supervisor import Patience
from pytest_mlperf.suite.build_step import Step

LIMIT_S = 300.0
"""A module of the user's own may be slow to import."""

QUIET = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
"""Variables of every builder: nothing is downloaded, and no tokenizer's threads are forked."""

ABOUT: Fields = {
    "versions": by_name(is_text),
    "missing": each(is_text),
    "code": is_text,
    "python": is_text,
    "executable": is_text,
}
"""What `checkpoint_child.about` answers."""

EXTRA = "torchao"
"""What an extra of this package brings; the other builders want an environment of their own."""


def about_builder(step: Step) -> Event:
    """Return versions, and the digest of the builder's own code; see `checkpoint_child.about`.

    Raises:
        RunError: Its Python does not answer, or lacks a library.
    """
    found = _asked(step.target, step.python.command if step.python else None)
    if missing := found["missing"]:
        names = " and ".join(missing)
        what = "are not installed" if len(missing) > 1 else "is not installed"
        if step.python:
            what += f" in {step.python.title} ({step.python.key}): pip install {' '.join(missing)}"
        elif EXTRA in missing:
            what += "; try: pip install 'pytest-mlperf[quantization]'"
        else:
            what += (
                "; install it, or name the Python of an environment that has it: "
                f'build = {{ use = "{step.use}", python = "..." }}'
            )
        raise RunError("build", f"builder {step.use} needs {names}, which {what}")
    return found


@lru_cache(maxsize=64)
def _asked(target: str, python: tuple[str, ...] | None) -> Event:
    """Return what a builder's Python says; once a session, in which nothing is installed."""
    with tempfile.TemporaryDirectory(prefix="pytest-mlperf-") as folder:
        child = Child(
            title=f"builder {target}",
            folder=Path(folder),
            script="run/checkpoint_child",
            spec={"task": "about", "target": target},
            answer=ABOUT,
            patience=Patience(progress_s=LIMIT_S, phase_s=LIMIT_S),
            show=lambda _: None,
            python=python,
            environment=QUIET,
        )
        try:
            return child.run()
        except RunError as error:
            last = log_tail(error.log, 1)  # the log itself is about to vanish
            more = f"; its log ends: {last[0]}" if last else ""
            raise RunError("build", f"{error}{more}") from None
