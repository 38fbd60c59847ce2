"""Where everything is kept: the tables, and the words that describe what is in it."""
