"""Measures of a sample without a judge, and ratings computed from a judge's replies."""
