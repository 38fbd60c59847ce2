"""A person's SQL, read-only and shut in."""
