"""Labelled sets, the attack set, and reviewed verdicts asked again."""
