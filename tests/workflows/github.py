"""The workflows as parsed YAML, and a folder in which their steps run as on GitHub."""

from __future__ import annotations

import contextlib
import json
import os
import re
import runpy
import select
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest import mock

import yaml

from pytest_mlperf.cli import main
from tests.children import PYTHON, shebang

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
ACTIONS = sorted((ROOT / ".github" / "actions").glob("*/action.yml"))
SCRIPTS = ROOT / ".github" / "scripts"

HOSTED = frozenset({"ubuntu-latest", "ubuntu-24.04-arm", "macos-latest"})
"""Machines of GitHub's own; all others are somebody's."""


@dataclass(frozen=True)
class Workflow:
    path: Path

    @cached_property
    def content(self) -> dict[str, Any]:
        """The parsed file; YAML 1.1 reads the key `on` as true."""
        content: dict[Any, Any] = yaml.safe_load(self.path.read_text("utf-8"))
        on = content.pop(True)
        content["on"] = (
            on if isinstance(on, dict) else dict.fromkeys([on] if isinstance(on, str) else on)
        )
        return content

    @property
    def jobs(self) -> dict[str, dict[str, Any]]:
        job_list: dict[str, dict[str, Any]] = self.content["jobs"]
        return job_list

    def step(self, job: str, name: str) -> dict[str, Any]:
        (found_step,) = [one for one in self.jobs[job]["steps"] if one.get("name") == name]
        return dict(found_step)

    def script(self, job: str, name: str) -> str:
        return str(self.step(job, name)["run"])


def workflow(name: str) -> Workflow:
    return Workflow(ROOT / ".github" / "workflows" / f"{name}.yml")


def action(name: str) -> dict[str, Any]:
    path = ROOT / ".github" / "actions" / name / "action.yml"
    definition: dict[str, Any] = yaml.safe_load(path.read_text("utf-8"))
    return definition


def scripts() -> Iterator[tuple[str, str]]:
    """Yield every script of every workflow and action, with a name of its own."""
    for path in WORKFLOWS:
        for job, content in Workflow(path).jobs.items():
            for number, step in enumerate(content["steps"]):
                if "run" in step:
                    yield f"{path.stem}.{job}.{number}", str(step["run"])
    for path in ACTIONS:
        steps = yaml.safe_load(path.read_text("utf-8"))["runs"]["steps"]
        for number, step in enumerate(steps):
            if "run" in step:
                yield f"{path.parent.name}.{number}", str(step["run"])


_EXPRESSION = re.compile(r"\$\{\{\s*(.*?)\s*\}\}")


def fill(text: str, values: Mapping[str, str]) -> str:
    """Return a value with its expressions replaced, as GitHub does before a step starts.

    Raises:
        KeyError: An expression that the test did not give a value for.
    """
    return _EXPRESSION.sub(lambda match: values[match[1]], text)


@dataclass
class Runner:
    """A job's files, and bash as GitHub calls it.

    Attributes:
        folder: All of it is below this one.
        env: Set for every step.
        in_process: Whether commands of this project run in this process instead of a new one.
    """

    folder: Path
    env: dict[str, str] = field(default_factory=dict)
    in_process: bool = True

    def __post_init__(self) -> None:
        for name in ("workspace", "temp", "bin", "forwards"):
            (self.folder / name).mkdir(exist_ok=True)
        if not (self.folder / "requests").exists():
            os.mkfifo(self.folder / "requests")
        for name in ("pytest-mlperf", "python"):
            text = FORWARD.format(name=name, python=PYTHON, folder=self.folder)
            self.put(name, text, "forwards")

    @property
    def workspace(self) -> Path:
        return self.folder / "workspace"

    @property
    def temp(self) -> Path:
        return self.folder / "temp"

    def environment(self, **more: str) -> dict[str, str]:
        """Return the environment of a step: this Python first, then the programs in `bin`."""
        own_folders = [
            self.folder / "bin",
            *([self.folder / "forwards"] if self.in_process else []),
        ]
        path = [*map(str, own_folders), str(Path(sys.executable).parent), os.environ["PATH"]]
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "GITHUB_"))}
        return {
            **kept,
            "PATH": os.pathsep.join(path),
            "CI": "true",
            "RUNNER_TEMP": str(self.temp),
            "GITHUB_OUTPUT": str(self.folder / "output"),
            "GITHUB_STEP_SUMMARY": str(self.folder / "summary"),
            "GITHUB_ENV": str(self.folder / "env"),
            "GITHUB_REPOSITORY": "lab/bench",
            **self.env,
            **more,
        }

    def run(self, script: str, **env: str) -> subprocess.CompletedProcess[str]:
        files = [self.folder / "stdout", self.folder / "stderr"]
        for file in files:
            file.unlink(missing_ok=True)
        with files[0].open("ab") as out, files[1].open("ab") as err:
            process = subprocess.Popen(
                ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
                cwd=self.workspace,
                env=self.environment(**env),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )
            self._serve(process)
        texts = [file.read_text("utf-8") for file in files]
        return subprocess.CompletedProcess(process.args, process.wait(), *texts)

    def ends(self, code: int, script: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run a step's script that ends with an exit code."""
        done = self.run(script, **env)
        assert done.returncode == code, done.stdout + done.stderr
        return done

    def _serve(self, shell: subprocess.Popen[bytes]) -> None:
        """Run the commands that a shell forwards, until it ends."""
        requests = os.open(self.folder / "requests", os.O_RDWR | os.O_NONBLOCK)
        end = os.pidfd_open(shell.pid)
        try:
            while True:
                ready = select.select([requests, end], [], [], 120)[0]
                if requests in ready:
                    for number in os.read(requests, 1024).decode().split():
                        code = run_here(Path("/proc", number))
                        reply = self.folder / f"reply.{number}"
                        reply.write_text(f"{code}\n", "utf-8")
                        reply.unlink()
                elif ready:
                    return
                else:
                    shell.kill()
                    raise subprocess.TimeoutExpired(shell.args, 120)
        finally:
            os.close(requests)
            os.close(end)

    def outputs(self) -> dict[str, str]:
        """Return the outputs that steps have set, those of several lines too."""
        file = self.folder / "output"
        lines = iter(file.read_text("utf-8").splitlines() if file.exists() else [])
        outputs = {}
        for line in lines:
            name, several, end = line.partition("<<")
            if several and "=" not in name:
                text = []
                while (next_line := next(lines)) != end:
                    text.append(next_line)
                outputs[name] = "\n".join(text) + "\n"
            else:
                name, _, value = line.partition("=")
                outputs[name] = value
        return outputs

    def summary(self) -> str:
        file = self.folder / "summary"
        return file.read_text("utf-8") if file.exists() else ""

    def put(self, name: str, content: str, folder: str = "bin") -> Path:
        """Write a program, into the first folder of PATH unless another is named."""
        path = self.folder / folder / name
        path.write_text(content, "utf-8")
        path.chmod(0o755)
        return path

    def scripts_of_ours(self, below: str = ".") -> None:
        """Let the workspace have `.github/scripts`, as after a checkout."""
        folder = self.workspace / below / ".github"
        folder.mkdir(parents=True)
        (folder / "scripts").symlink_to(SCRIPTS)


def run_here(process: Path) -> int:
    """Run the command of a waiting process in this one; return its exit code.

    Args:
        process: Its folder in /proc, with its words, variables, working folder and streams.
    """
    _, command, *words = os.fsdecode((process / "cmdline").read_bytes()).split("\0")[:-1]
    entries = os.fsdecode((process / "environ").read_bytes()).split("\0")
    variables = dict(entry.split("=", 1) for entry in entries if "=" in entry)
    with (
        (process / "fd/1").open("a", encoding="utf-8") as out,
        (process / "fd/2").open("a", encoding="utf-8") as err,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        contextlib.chdir(process / "cwd"),
        mock.patch.dict(os.environ, variables, clear=True),
        mock.patch.object(sys, "argv", words),
    ):
        try:
            if command.endswith("pytest-mlperf"):
                return main(words)
            runpy.run_path(words[0], run_name="__main__")
        except SystemExit as ended:
            return int(ended.code or 0)
    return 0


FORWARD = """#!/bin/bash
case {name}:$1 in
  pytest-mlperf:* | python:*accept.py | python:*render.py) ;;
  *) exec {python} "$@" ;;
esac
# Each has a reply of its own: of two in a pipeline, one may not take that of the other.
mkfifo '{folder}/reply.'$$
(echo $$ > '{folder}/requests') # in a child, since these streams are looked at meanwhile
read -r code < '{folder}/reply.'$$
exit "$code"
"""
"""A program that lets this process run its command: an interpreter takes seconds to start."""


RECORDER = """{shebang}
import json, os, sys
with open({record!r}, "a", encoding="utf-8") as file:
    file.write(json.dumps([os.path.basename(sys.argv[0]), *sys.argv[1:]]) + "\\n")
"""
"""A program that does nothing but write down with which words it was called."""


GH = """{shebang}
import json, os, sys
given = sys.argv[1:]
body = sys.stdin.read() if "--input" in given else ""
key = f"{{given[2]}} {{given[3]}}" if given[:2] == ["api", "--method"] else " ".join(given)
with open({record!r}, "a", encoding="utf-8") as file:
    file.write(json.dumps([key, json.loads(body) if body else None]) + "\\n")
answers = json.load(open({answers!r}, encoding="utf-8"))
if key not in answers:
    sys.exit("gh: Not Found (HTTP 404)")
if answers[key] is not None:
    print(json.dumps(answers[key]))
"""
"""GitHub's command, as far as steps use it: answers from a file, and writes down what was asked."""


@dataclass(frozen=True)
class GitHub:
    """A fake GitHub that answers a job's requests; one without an answer is a 404."""

    runner: Runner

    def answers(self, answers: Mapping[str, Any]) -> None:
        (self.runner.folder / "answers.json").write_text(json.dumps(answers), "utf-8")
        self.runner.put(
            "gh",
            GH.format(
                shebang=shebang(),
                record=str(self.runner.folder / "asked"),
                answers=str(self.runner.folder / "answers.json"),
            ),
        )

    def requests(self) -> list[tuple[str, Any]]:
        file = self.runner.folder / "asked"
        lines = file.read_text("utf-8").splitlines() if file.exists() else []
        return [(key, body) for key, body in map(json.loads, lines)]

    def event(self, content: Mapping[str, Any]) -> None:
        file = self.runner.folder / "event.json"
        file.write_text(json.dumps(content), "utf-8")
        self.runner.env["GITHUB_EVENT_PATH"] = str(file)


def recorder(runner: Runner, *names: str) -> Path:
    """Put programs in place that write down their words; return where."""
    record = runner.folder / "words"
    for name in names:
        runner.put(name, RECORDER.format(shebang=shebang(), record=str(record)))
    return record


def words(record: Path) -> list[list[str]]:
    return [json.loads(line) for line in record.read_text("utf-8").splitlines()]
