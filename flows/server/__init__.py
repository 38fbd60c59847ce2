"""A Prefect server of our own, and what Prefect is told."""
