"""One run from start to end in this process, and what it would cost."""
