"""Answer on a machine with an NVIDIA GPU what no other can: unattended, in under nine minutes.

    python -m benchmarks.gpu [--bundle DIR] [--out DIR] [--minutes 9] [--only PART ...] [--fake]

Each part runs in a process of its own, so that one that breaks leaves the others; the files are
written anew after each. It samples the first GPU that NVML lists. See benchmarks/gpu/README.md.

Nothing but the standard library is imported before the bundle is there.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu.bundle import BundleError, unpacked


def main(arguments: Sequence[str] | None = None) -> int:
    """Put a bundle's wheels beside this Python's packages, then run the parts.

    Returns:
        0 if all that were asked for answered, 1 if one failed, 2 where nothing can be run.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--bundle", type=Path)
    bundle: Path | None = parser.parse_known_args(given)[0].bundle
    with contextlib.ExitStack() as undo:
        if bundle is not None:
            try:
                site = undo.enter_context(unpacked(bundle))
            except BundleError as error:
                print(error, file=sys.stderr)
                return 2
            sys.path.insert(1, str(site))
            # After the checkout and before what is installed, in child processes too.
            rest = filter(None, [os.environ.get("PYTHONPATH")])
            os.environ["PYTHONPATH"] = os.pathsep.join([str(site), *rest])
        try:
            from benchmarks.gpu import run
        except ModuleNotFoundError as error:
            print(
                f"{error} for {sys.executable}: install pytest-mlperf with its extra diffusion, or "
                "make a bundle of it elsewhere (make gpu-bundle) and give it with --bundle DIR",
                file=sys.stderr,
            )
            return 2
        return run.main(given)


if __name__ == "__main__":
    sys.exit(main())
