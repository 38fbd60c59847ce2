"""The typed settings of a run, a suite and a target."""
