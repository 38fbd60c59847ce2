"""What carries the steps: the live run, its shards, the running of a step, the plan."""
