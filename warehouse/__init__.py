"""Where everything is kept: the store, and the words that describe what is in it."""
