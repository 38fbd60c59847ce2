"""The application under test, asked over HTTP or as a function."""
