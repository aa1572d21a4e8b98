"""Ranks of MPI: processes in a session of their own, which end when their pipe is closed."""

from __future__ import annotations

import subprocess
import sys

WAITS = "import sys; sys.stdin.read()"


class Ranks:
    """As MPI spawns them for a model of several GPUs; they do no work here.

    Their launcher leaves the session of its parent, so that an end of the parent's group does not
    end them: they see that the pipe to it is closed.
    """

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, count: int) -> None:
        for _ in range(count):
            self._processes.append(
                subprocess.Popen(
                    [sys.executable, "-S", "-c", WAITS],
                    stdin=subprocess.PIPE,
                    start_new_session=True,
                )
            )

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def end(self) -> None:
        processes, self._processes = self._processes, []
        for process in processes:
            process.communicate()
