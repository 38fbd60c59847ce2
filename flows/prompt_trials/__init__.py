"""A judge, its prompts and its endpoint tried outside a run: benchmark, comparison of prompts, preview."""
