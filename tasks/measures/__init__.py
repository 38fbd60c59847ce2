"""What is measured of a sample without a judge, and what is computed from a judge's ratings."""
