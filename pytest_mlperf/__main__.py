"""Run the command line by `python -m pytest_mlperf`, if `pytest-mlperf` is not on PATH."""

import sys

from pytest_mlperf.cli import main

sys.exit(main())
