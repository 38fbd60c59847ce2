"""What commands print and pages show, as data: comparisons, gates, diagnoses, lineage, where a run came from."""
