"""Opening, locking and migrating a warehouse, be it a DuckDB file or a lake."""
