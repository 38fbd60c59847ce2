"""How the warehouse is opened, locked, migrated and written, whichever store is behind it."""
