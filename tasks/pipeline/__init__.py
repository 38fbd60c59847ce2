"""The frame of the steps: the live run, its shards, the running of a step, sampling."""
