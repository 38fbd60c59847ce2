"""What commands print and pages show, as data: comparisons, gates, diagnoses, where a run came from."""
