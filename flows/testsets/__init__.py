"""Making test sets from documents and keeping them true: who is asked what, in which order, and what is written."""
