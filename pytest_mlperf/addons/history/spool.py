"""Keep results files in a folder until the database can be reached."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from pytest_mlperf import MlperfError
from pytest_mlperf.extension import Results, read_results, visible
from pytest_mlperf.stores.database import StoreError, opened, shown_url

UNSENT_FOLDER = "unsent"
"""Folder in the runs folder, with a subfolder per store."""

REFUSED_SUFFIX = ".refused"


@dataclass
class Delivery:
    """Hold the outcome of sending a session's results to a database.

    Attributes:
        sent: Number of sessions that were sent, including earlier ones.
        reason: Why this session was not sent; "" if it was.
        waiting: Folder in which the results are kept for the next session, or None.
        notes: Messages about files that can never be sent.
    """

    place: str
    sent: int = 0
    reason: str = ""
    waiting: Path | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def line(self) -> str:
        """Outcome of sending as one line of text."""
        if self.reason:
            kept = f"kept in {shown_url(str(self.waiting))}; the next session sends them"
            lost = "not queued either: send the results file with pytest-mlperf store import"
            text = f"store: results not sent: {self.reason}; {kept if self.waiting else lost}"
        else:
            others = self.sent - 1
            more = f"; earlier sessions sent, too: {others}" if others > 0 else ""
            text = f"store: {self.place}{more}"
        return visible("; ".join([text, *self.notes]))


def deliver(url: str, runs_dir: Path, results: Results, file: Path) -> Delivery:
    """Send a session to a database, and all earlier sessions that were not sent yet.

    The results file is first copied to the spool folder, so that nothing is lost if the process
    ends early.
    """
    delivery = Delivery(place=shown_url(url))
    folder = folder_of(runs_dir, url)
    waiting = _wait(file, folder / f"{results.run}.json")
    try:
        with opened(url, write=True) as store:
            delivery.sent += store.add(results)
            if waiting:
                waiting.unlink(missing_ok=True)
            _send_waiting(store.add, folder, delivery)
    except (StoreError, OSError) as error:
        delivery.reason = str(error)
        delivery.waiting = folder if waiting and waiting.exists() else None
    with contextlib.suppress(OSError):  # other results may still wait
        folder.rmdir()
        folder.parent.rmdir()
    return delivery


def folder_of(runs_dir: Path, url: str) -> Path:
    """Return the folder of results not yet sent to a database; its name ignores the password."""
    return runs_dir / UNSENT_FOLDER / hashlib.sha256(shown_url(url).encode()).hexdigest()[:8]


def _wait(file: Path, target: Path) -> Path | None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(file, target)
        except FileExistsError:
            pass
        except OSError:
            shutil.copyfile(file, target)
    except OSError:
        return None
    return target


def _send_waiting(add: Callable[[Results], int], folder: Path, delivery: Delivery) -> None:
    for path in sorted(folder.glob("*.json")):
        try:
            delivery.sent += add(read_results(path))
        except StoreError:
            raise
        except MlperfError as error:
            if not path.exists():
                continue  # another session has sent it
            path.replace(path.with_name(f"{path.name}{REFUSED_SUFFIX}"))
            text = "an earlier session cannot be stored, and is not sent again"
            delivery.notes.append(f"{text}: {error}")
        else:
            path.unlink(missing_ok=True)
