"""One run spread over the workers of a Prefect work pool."""
