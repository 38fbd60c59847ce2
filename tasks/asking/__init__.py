"""One question in, one usable reply out, on record: requests, limits, verdicts, votes, prices."""
