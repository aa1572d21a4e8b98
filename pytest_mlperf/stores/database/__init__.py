"""Store the results of all sessions in a SQLite file or a PostgreSQL database."""

from pytest_mlperf.stores.database._backends import StoreError, shown_url, store_of, store_setting
from pytest_mlperf.stores.database._store import Store, opened

__all__ = ["Store", "StoreError", "opened", "shown_url", "store_of", "store_setting"]
