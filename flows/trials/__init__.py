"""Asking a judge outside of an evaluation: labelled rows, prompts against each other, and what an endpoint can do."""
