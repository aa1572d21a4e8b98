"""May this tag be released? Its version, its changelog, its branch and its tests decide."""

from __future__ import annotations

import ast
import os
import re
import subprocess
from pathlib import Path

from api import Refused, call, fail

TESTS = "ci.yml"


def version_of(module: Path) -> str:
    """Return what a module gives as `__version__`, without importing it.

    Raises:
        Refused: It gives none.
    """
    for node in ast.parse(module.read_text("utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            if "__version__" in names:
                return str(node.value.value)
    raise Refused(f"{module} has no __version__")


def check(tag: str, sha: str, repository: str, root: Path) -> str:
    """Return the version that may be released.

    Args:
        tag: "v1.2.0".
        sha: The commit that it names.
        repository: "OWNER/NAME".
        root: A checkout of that commit with its whole history.

    Raises:
        Refused: Something is missing.
    """
    version = version_of(root / "pytest_mlperf" / "__init__.py")
    if tag != f"v{version}":
        raise Refused(f"the tag is {tag}, and the package is version {version}")
    changes = (root / "CHANGELOG.md").read_text("utf-8")
    if not re.search(rf"^## {re.escape(version)}\b", changes, re.MULTILINE):
        raise Refused(f"CHANGELOG.md has no section '## {version}'")
    command = ["git", "merge-base", "--is-ancestor", sha, "origin/main"]
    if subprocess.run(command, cwd=root, check=False).returncode:
        raise Refused(f"{sha} is not on main")
    runs = call(
        f"repos/{repository}/actions/workflows/{TESTS}/runs"
        f"?head_sha={sha}&event=push&status=success"
    )
    if not runs["total_count"]:
        raise Refused(f"{TESTS} has not passed for {sha}: wait for it, and run this again")
    return version


if __name__ == "__main__":
    try:
        environment = os.environ
        found = check(
            environment["GITHUB_REF_NAME"],
            environment["GITHUB_SHA"],
            environment["GITHUB_REPOSITORY"],
            Path(),
        )
        print(f"{found} may be released")
    except Refused as error:
        fail(str(error))
