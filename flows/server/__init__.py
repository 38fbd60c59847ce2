"""A Prefect server of our own, and the settings that Prefect gets."""
