"""What a store does not have yet: results files that wait until it can be reached."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from pytest_mlperf import MlperfError
from pytest_mlperf.core.untrusted_text import visible
from pytest_mlperf.extension import Results, read_results
from pytest_mlperf.stores.database import Store, StoreError, opened, shown_url

UNSENT_FOLDER = "unsent"
"""Below the folder of results and logs; in it one folder for each store."""

REFUSED_SUFFIX = ".refused"


@dataclass
class Delivery:
    """What became of a session that was to be kept in a store.

    Attributes:
        sent: Sessions that the store has now, and lacked before.
        reason: Why it does not have this one; "" where it has.
        waiting: The folder in which the results wait; None: they do not.
        notes: What can never be sent, and why.
    """

    place: str
    sent: int = 0
    reason: str = ""
    waiting: Path | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def line(self) -> str:
        """The one line that is said of it."""
        if self.reason:
            kept = f"kept in {shown_url(str(self.waiting))}; the next session sends them"
            lost = "not kept for it: pytest-mlperf store import sends the results file"
            text = f"store: results not sent: {self.reason}; {kept if self.waiting else lost}"
        else:
            before = self.sent - 1
            more = f", with {before} before it that it lacked" if before > 0 else ""
            text = f"store: {self.place}{more}"
        return visible("; ".join([text, *self.notes]))


def deliver(url: str, runs_dir: Path, results: Results, file: Path) -> Delivery:
    """Keep a session in a store, and all before it that wait for it.

    Args:
        file: Its results file. It waits in the spool from before the store is asked, so that
            nothing is lost with a process that ends meanwhile.
    """
    delivery = Delivery(place=shown_url(url))
    folder = folder_of(runs_dir, url)
    waiting = _wait(file, folder / f"{results.run}.json")
    try:
        with opened(url, write=True) as store:
            delivery.sent += store.add(results)
            if waiting:
                waiting.unlink(missing_ok=True)
            _send_waiting(store, folder, delivery)
    except (StoreError, OSError) as error:
        delivery.reason = str(error)
        delivery.waiting = folder if waiting and waiting.exists() else None
    with contextlib.suppress(OSError):  # others' results may be left
        folder.rmdir()
        folder.parent.rmdir()
    return delivery


def folder_of(runs_dir: Path, url: str) -> Path:
    """Return where results wait for a store: a password may change meanwhile."""
    return runs_dir / UNSENT_FOLDER / hashlib.sha256(shown_url(url).encode()).hexdigest()[:8]


def _wait(file: Path, place: Path) -> Path | None:
    """Put a results file into the spool: its second name where file systems have such."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(file, place)
        except FileExistsError:
            pass
        except OSError:
            shutil.copyfile(file, place)
    except OSError:
        return None
    return place


def _send_waiting(store: Store, folder: Path, delivery: Delivery) -> None:
    for path in sorted(folder.glob("*.json")):
        try:
            delivery.sent += store.add(read_results(path))
        except StoreError:
            raise
        except MlperfError as error:
            if not path.exists():
                continue  # another session has sent it
            path.replace(path.with_name(f"{path.name}{REFUSED_SUFFIX}"))
            delivery.notes.append(f"can never be sent: {error}")
        else:
            path.unlink(missing_ok=True)
