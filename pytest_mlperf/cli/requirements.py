"""What an engine needs beyond files and options, asked of its library in a child process.

Run as `python -m pytest_mlperf.cli.requirements`: question and answer are JSON on stdin and stdout.
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import lru_cache

from pytest_mlperf import registry
from pytest_mlperf.core.errors import EnvironmentFault, MlperfError, SuiteError, UnavailableError
from pytest_mlperf.suite.plan import Planned
from pytest_mlperf.suite.preflight import engine_place

LIMIT_S = 120.0
"""A large library may take its time to be imported."""

KINDS = {kind.__name__: kind for kind in (SuiteError, UnavailableError)}


def require_library(planned: Planned) -> None:
    """Let a registered engine ask its library, where it has something to ask: `require()`.

    Call it for a case that has its model and whose options are right.

    Raises:
        SuiteError: The library knows no such thing as an option names.
        EnvironmentFault: It has not got it here.
    """
    use = planned.engine.use
    known = registry.registered("engines").get(use)
    if known is None or not hasattr(registry.resolve(known.value), "require"):
        return
    question = {
        "target": known.value,
        "given": {
            **planned.factories[0].options,
            "model": planned.model,
            "precision": planned.engine.precision,
            "dataset": None,
        },
    }
    kind, message = _asked(json.dumps(question, sort_keys=True))
    if message:
        place = engine_place(planned, message)
        raise KINDS.get(kind, EnvironmentFault)(f"{place}: {message}")


def library_trouble(use: str) -> str:
    """Return why a registered engine cannot be used here whatever its options; "": it can.

    Engines whose library may be installed and not work say so: a class method `check_library`.
    """
    factory = registry.registered("engines")[use].value
    if not hasattr(registry.resolve(factory), "check_library"):
        return ""
    return _asked(json.dumps({"target": factory, "given": None}))[1]


@lru_cache(maxsize=256)
def _asked(question: str) -> tuple[str, str]:
    """Return the class of the error and its sentence; "" and "" where nothing is lacking."""
    command = [sys.executable, "-m", "pytest_mlperf.cli.requirements"]
    try:
        done = subprocess.run(
            command,
            input=question,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "", f"the engine's library does not answer within {LIMIT_S:.0f} s"
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"it ends with {done.returncode}"])[-1]
        return "", f"asking the engine's library failed: {last}"
    kind, message = json.loads(done.stdout.splitlines()[-1])
    return kind, message


def main() -> None:
    """Answer one question."""
    question = json.load(sys.stdin)
    try:
        factory = registry.resolve(question["target"])
        if question["given"] is None:
            factory.check_library()
        else:
            built = factory(**question["given"])
            built.require()
            getattr(built, "reach", lambda: None)()
        answer = ["", ""]
    except MlperfError as error:
        answer = [type(error).__name__, str(error)]
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
