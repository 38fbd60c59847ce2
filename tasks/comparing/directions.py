"""Which way is good: of most metrics a high value, of metrics of faults a low one."""

from typing import Final

LOW_IS_GOOD: Final = ("hallucination", "noise_sensitivity_irrelevant", "noise_sensitivity_relevant")
"""Metrics of which a high value is bad."""
