"""The built-in judge: no model, no network, deterministic."""
