"""`evalhouse ui`: the whole history in a browser. `app` puts it together; each page has a file."""
