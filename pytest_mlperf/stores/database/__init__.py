"""Every session's results in one SQLite file or PostgreSQL database."""

from pytest_mlperf.stores.database._backends import StoreError, require_url, shown_url
from pytest_mlperf.stores.database._store import Store, opened

__all__ = ["Store", "StoreError", "opened", "require_url", "shown_url"]
