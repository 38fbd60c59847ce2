"""A judge's prompts and endpoint tried outside a run."""
