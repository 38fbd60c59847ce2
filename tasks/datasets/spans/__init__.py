"""Traces as datasets: each format maps to spans, and one place makes samples of a trace's spans."""
