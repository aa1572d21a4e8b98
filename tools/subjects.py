"""Check the subjects of commits: `type(scope): imperative summary`, at most 72 characters.

`python tools/subjects.py BASE HEAD` checks the commits of HEAD that BASE lacks, without merges and
commits of bots. If BASE is not in this clone, as for a new branch, only HEAD is checked.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TYPES = ("feat", "fix", "perf", "refactor", "docs", "test", "build", "ci")
MAX_CHARACTERS = 72
SUBJECT = re.compile(rf"(?:{'|'.join(TYPES)})(?:\([a-z0-9_.,/-]+\))?!?: (?P<verb>\S+)(?: \S+)*")
IMPERATIVES = {
    *("bring", "ping", "ring", "spring", "string"),
    *("bleed", "embed", "exceed", "feed", "need", "proceed", "seed", "shed", "shred", "speed"),
    *("alias", "bias", "focus"),
}
"""Imperatives with the ending of another form."""


def defects(subject: str) -> Iterator[str]:
    """Yield the rules that a subject breaks."""
    if len(subject) > MAX_CHARACTERS:
        yield f"has {len(subject)} characters; at most {MAX_CHARACTERS} are allowed"
    match = SUBJECT.fullmatch(subject)
    if match is None:
        yield f"is not of the form `type(scope): summary`; types are {', '.join(TYPES)}"
        return
    verb = match["verb"]
    if not verb[0].islower():
        yield f"begins its summary with {verb!r}, not with a lower-case verb"
    if re.search(r"(ed|ing|[^s]s)$", verb) and verb not in IMPERATIVES:
        yield f"begins its summary with {verb!r}; use the imperative, such as `add` or `fix`"
    if subject.endswith("."):
        yield "ends with a full stop"


def subjects(base: str, head: str, root: Path = ROOT) -> list[str]:
    """Return the subjects of the commits of `head` that `base` lacks, the newest first."""
    names = ("rev-parse", "--quiet", "--verify", "--end-of-options", f"{base}^{{commit}}")
    is_known = subprocess.run(["git", *names], cwd=root, capture_output=True, check=False)
    selection = [head, f"^{base}"] if is_known.returncode == 0 else ["--max-count=1", head]
    command = ["git", "log", "--no-merges", "--format=%an%x00%s", *selection]
    log = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    commits = (line.partition("\0") for line in log.splitlines())
    return [subject for author, _, subject in commits if not author.endswith("[bot]")]


def main(arguments: list[str]) -> int:
    """Print the defects of the commits between two revisions; return 1 if there are any."""
    base, head = arguments
    lines = [f"{text}: {defect}" for text in subjects(base, head) for defect in defects(text)]
    print("\n".join(lines) or "all commit subjects keep the rules of CONTRIBUTING.md")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
