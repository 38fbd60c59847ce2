"""Typed reads and writes of the tables, by subject."""
