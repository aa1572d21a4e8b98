"""`python -m pytest_mlperf`, where the command `pytest-mlperf` is not on PATH."""

import sys

from pytest_mlperf.cli import main

sys.exit(main())
