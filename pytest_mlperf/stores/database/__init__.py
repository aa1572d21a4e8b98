"""Store the results of all sessions in a SQLite file or a PostgreSQL database."""

from pytest_mlperf.stores.database._backends import (
    USUAL,
    StoreError,
    require_url,
    shown_url,
    store_of,
)
from pytest_mlperf.stores.database._store import Store, opened

__all__ = ["USUAL", "Store", "StoreError", "opened", "require_url", "shown_url", "store_of"]
