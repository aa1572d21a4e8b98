"""What the trainers of the tiny models share: training that resumes, writing, and the record."""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from pytest_mlperf.core.extension import Dataset

B = TypeVar("B")

ROOT = Path(__file__).resolve().parents[1]
TINY = ROOT / "suites" / "tiny"
BUILD = ROOT / "build"
"""Where checkpoints are."""


@dataclass(frozen=True, kw_only=True)
class Course:
    """How a model is trained.

    Attributes:
        settings: All that decides the result. A checkpoint of other settings is not resumed.
        steps: Batches.
        checkpoint_steps: A checkpoint is written each time after so many steps, and at the end.
        clip: The norm that all gradients together have at most.
        title: Stands before what is printed.
    """

    settings: Sequence[Any]
    steps: int
    checkpoint_steps: int
    clip: float | None = None
    title: str = ""


def warmed_up(
    optimizer: torch.optim.Optimizer, *, peak: float, warm_up: int, steps: int
) -> LRScheduler:
    """Let the rate rise during warm-up, and fall linearly all the time.

    Args:
        optimizer: Made with rate 1, by which that of a step is multiplied.
        peak: The highest rate.
        warm_up: Steps.
        steps: In all.
    """
    return LambdaLR(
        optimizer, lambda step: peak * min(1.0, (step + 1) / warm_up) * (1 - step / steps)
    )


def fit(
    model: torch.nn.Module,
    schedules: Sequence[LRScheduler],
    course: Course,
    *,
    batches: Callable[[int], Iterable[B]],
    loss_of: Callable[[B], Sequence[Tensor]],
    checkpoint: Path,
    after_step: Callable[[], None] = lambda: None,
) -> None:
    """Train in place from the seed, or from the checkpoint where there is one.

    Args:
        model: As made after `torch.manual_seed`.
        schedules: Of the rates of its optimizers, one of each.
        course: How.
        batches: Gives the batches from a step on.
        loss_of: Returns first what is made smaller and last what is printed.
        checkpoint: File that is written.
        after_step: Called after each step.
    """
    parts: dict[str, Any] = {"model": model}
    for number, schedule in enumerate(schedules):
        parts |= {f"schedule {number}": schedule, f"optimizer {number}": schedule.optimizer}
    done = _resume(parts, course, checkpoint)
    losses: list[float] = []
    began_s = time.monotonic()
    model.train()
    for step, batch in zip(range(done, course.steps), batches(done), strict=True):
        losses.append(_step(model, schedules, loss_of(batch), clip=course.clip))
        after_step()
        if (done := step + 1) % course.checkpoint_steps == 0 or done == course.steps:
            states = {name: part.state_dict() for name, part in parts.items()}
            save(checkpoint, {"settings": list(course.settings), "steps": done, **states})
            mean, elapsed_s = sum(losses) / len(losses), time.monotonic() - began_s
            title = f"{course.title}step {done:4} of {course.steps}"
            print(f"{title}: loss {mean:.4f}, {elapsed_s:.0f} s", flush=True)
            losses.clear()
    model.eval()


def _resume(parts: Mapping[str, Any], course: Course, checkpoint: Path) -> int:
    """Load the checkpoint of these settings, if there is one, and return the steps it has done."""
    saved = torch.load(checkpoint, weights_only=True) if checkpoint.is_file() else {}
    if saved.get("settings") != list(course.settings):
        return 0
    for name, part in parts.items():
        part.load_state_dict(saved[name])
    print(f"resuming after step {saved['steps']} of {course.steps}: {checkpoint}", flush=True)
    return int(saved["steps"])


def _step(
    model: torch.nn.Module,
    schedules: Sequence[LRScheduler],
    losses: Sequence[Tensor],
    *,
    clip: float | None,
) -> float:
    torch.autograd.backward(losses[0])
    if clip is not None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    for schedule in schedules:
        schedule.optimizer.step()
        schedule.optimizer.zero_grad()
        schedule.step()
    return float(losses[-1].detach())


def save(path: Path, state: Mapping[str, Any]) -> None:
    """Replace the checkpoint in one step, so that an interruption leaves the one before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    torch.save(dict(state), partial)
    partial.replace(path)


def write(path: Path, content: bytes) -> None:
    """Replace a file in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    partial.write_bytes(content)
    partial.replace(path)


def sha256(path: Path) -> str:
    """Return the hex SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def source(name: str) -> str:
    """Return the hex SHA-256 of a script of this folder: what is drawn depends on it."""
    return sha256(Path(__file__).with_name(name))


def write_folder(folder: Path, save_to: Callable[[str], Any]) -> None:
    """Write the files that `save_to` leaves in a folder, each in one step."""
    with tempfile.TemporaryDirectory() as place:
        save_to(place)
        for path in sorted(Path(place).iterdir()):
            write(folder / path.name, path.read_bytes())


class Answers:
    """A sink that keeps the answers of an engine that completes inside `submit`."""

    wants_output = True
    times_tokens = False
    needs_first_tokens = False

    def __init__(self) -> None:
        self.outputs: dict[int, bytes] = {}

    def first_tokens(self, ids: Sequence[int], tokens: Sequence[bytes] | None = None) -> None:
        """Refuse: no tokens are timed here."""
        raise AssertionError(f"{len(ids)} samples have tokens: {tokens!r}")

    def next_tokens(self, ids: Sequence[int]) -> None:
        """Refuse: no tokens are timed here."""
        raise AssertionError(f"{len(ids)} samples have tokens")

    def streamed(
        self,
        ids: Sequence[int],
        after_first: Sequence[int | None],
        hidden: Sequence[int | None] | None = None,
    ) -> None:
        """Nobody asks how."""

    def ended(
        self,
        ids: Sequence[int],
        reasons: Sequence[str],
        prompt_tokens: Sequence[int | None] | None = None,
    ) -> None:
        """Nobody asks why."""

    def attach(self, ids: Sequence[int], artefacts: Sequence[Mapping[str, bytes]]) -> None:
        """Nobody reads them."""

    def done(
        self,
        ids: Sequence[int],
        outputs: Sequence[bytes] | None = None,
        n_tokens: Sequence[int] | None = None,  # noqa: ARG002 - they are counted from the answers
    ) -> None:
        """Keep the answers."""
        self.outputs.update(zip(ids, outputs or (), strict=True))

    def failed(self, error: BaseException) -> None:
        """Pass the engine's error on."""
        raise error


def answers_of(engine: Any, dataset: Dataset) -> list[bytes]:
    """Return an engine's answers to all samples; it is closed afterwards."""
    indices, sink = range(len(dataset)), Answers()
    with engine:
        engine.load_samples(indices)
        engine.submit(indices, indices, sink)
    return [sink.outputs[index] for index in indices]


def begin(description: str | None, checkpoint: Path, *, threads: int = 1) -> Path:
    """Return the checkpoint that the command line names, or this one.

    From here on the same libraries on the same kind of CPU compute the same.
    """
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument("--checkpoint", type=Path, default=checkpoint)
    arguments = parser.parse_args()
    be_deterministic(threads=threads)
    return Path(arguments.checkpoint)


def be_deterministic(*, threads: int = 1) -> None:
    """Let the same libraries on the same kind of CPU compute the same."""
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(mode=True)


def parameters(model: torch.nn.Module) -> int:
    """Return how many a model has."""
    return sum(weights.numel() for weights in model.parameters())


def made_with(libraries: Sequence[str]) -> dict[str, Any]:
    """Return the versions of Python and of libraries, for `write_record`."""
    return {
        "python": platform.python_version(),
        "libraries": {name: version(name) for name in libraries},
    }


def write_record(suite: Path, readme: str, record: Mapping[str, Any], **more: Any) -> None:
    """Write training.json and README.md into the suite's folder, and print the former.

    Args:
        suite: The folder.
        readme: README.md, to be formatted with `record`, `more` and `made_with`.
        record: What was trained, how, and what it scores; "libraries" with their versions.
        **more: What only the README tells.
    """
    text = json.dumps(record, indent=2) + "\n"
    write(suite / "training.json", text.encode())
    libraries = ", ".join(f"{name} {found}" for name, found in record["libraries"].items())
    write(suite / "README.md", readme.format(**record, **more, made_with=libraries).encode())
    print(text, end="")
