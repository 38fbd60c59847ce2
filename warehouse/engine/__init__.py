"""How the warehouse is opened, locked, migrated and written, be it a DuckDB file or a lake."""
