"""The HTML pages: a run, a history, a review sheet."""
