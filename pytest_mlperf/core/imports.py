"""Explain why a class or function that a suite names cannot be imported."""

from __future__ import annotations

import itertools
import re
import sys
import sysconfig
from functools import cache
from pathlib import Path

from pytest_mlperf.core.errors import text_of
from pytest_mlperf.core.untrusted_text import nearest

DISTRIBUTIONS = {
    "PIL": "pillow",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python",
    "dotenv": "python-dotenv",
    "mlperf_loadgen": "mlcommons-loadgen",
    "modelopt": "nvidia-modelopt",
    "yaml": "pyyaml",
    "pynvml": "nvidia-ml-py",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
}
"""Distribution names of libraries that are imported by another name."""


def normal(name: str) -> str:
    """Return the normalised name of a distribution, as PyPI writes it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def distribution(library: str) -> str:
    """Return the normalised name of the distribution (package) that provides module `library`."""
    return normal(DISTRIBUTIONS.get(library, library))


def is_installed(location: str) -> bool:
    """Check whether a path is in this Python's installation, not in the tested project."""
    path = Path(location)
    folders = {str(path), *map(str, path.parents)}
    of_packages = not {"site-packages", "dist-packages"}.isdisjoint(path.parts)
    return of_packages or path.suffix == ".zip" or not _places().isdisjoint(folders)


@cache
def _places() -> frozenset[str]:
    paths, names = sysconfig.get_paths(), ("stdlib", "platstdlib", "purelib", "platlib", "scripts")
    return frozenset(paths[name] for name in names if name in paths)


def not_imported(target: str, error: Exception) -> str:
    """Return why "package.module:name" cannot be imported, with advice."""
    module, _, name = target.partition(":")
    top = module.partition(".")[0]
    loaded, attribute = sys.modules.get(module), name.partition(".")[0]
    if isinstance(error, ModuleNotFoundError):
        if error.name not in list(itertools.accumulate(module.split("."), "{}.{}".format)):
            name = distribution((error.name or "").partition(".")[0])
            return (
                f"it imports {error.name}, which is not installed: {sys.executable} -m pip "
                f"install {name}"
            )
        folders = [path for path in sys.path if not is_installed(path)]
        return (
            f"no module {error.name} in {', '.join(folders)} or the packages of {sys.executable}: "
            "install it, or add its folder to pytest's pythonpath (pythonpath = . in pytest.ini)"
        )
    if loaded is not None and not hasattr(loaded, attribute):
        # Suggest only names that the module itself defines.
        modules = {n: str(getattr(v, "__module__", "")) for n, v in vars(loaded).items()}
        near = nearest(attribute, [n for n, m in modules.items() if m.partition(".")[0] == top])
        return f"{getattr(loaded, '__file__', module)} has no {attribute!r}{near}"
    return text_of(error)
