"""Run the `pytest-mlperf` command as `python -m pytest_mlperf`."""

import sys

from pytest_mlperf.cli import main

sys.exit(main())
