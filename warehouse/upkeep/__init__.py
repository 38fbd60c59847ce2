"""Checking, compacting and moving a warehouse."""
