"""People label verdicts: which ones are drawn, exported, taken in."""
