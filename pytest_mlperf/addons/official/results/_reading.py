"""Read files of a submission; refuse links that lead out of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pytest_mlperf import MlperfError
from pytest_mlperf.stores.foreign import MAX_LOG_BYTES, content_of, json_of

MAX_DESCRIPTION_BYTES = 2**20


def text_of(path: Path, root: Path, max_bytes: int = MAX_LOG_BYTES) -> str:
    """Read a text file; raise MlperfError if it is outside `root` or larger than `max_bytes`."""
    try:
        if not path.resolve().is_relative_to(root.resolve()):
            raise MlperfError(f"{path}: a link that leads out of {root}; it is not followed")
        return content_of(path, "file of a submission", max_bytes).decode()
    except UnicodeDecodeError as error:
        raise MlperfError(f"{path}: not UTF-8: {error.reason}") from None
    except (OSError, RuntimeError) as error:  # a cycle of links is a RuntimeError
        reason = error.strerror if isinstance(error, OSError) else "a loop of links"
        raise MlperfError(f"{path}: cannot be read: {reason}") from None


def object_of(path: Path, root: Path) -> dict[str, Any]:
    """Return the JSON object in a file inside `root`; of duplicate keys the last one counts."""
    text = text_of(path, root, MAX_DESCRIPTION_BYTES)
    content = json_of(path, "JSON file", text.encode(), repeated_keys=True)
    if not isinstance(content, dict):
        raise MlperfError(f"{path}: no JSON object")
    return content
