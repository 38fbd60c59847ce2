"""A judge put to the test outside a run: benchmark, prompts compared, attacks."""
