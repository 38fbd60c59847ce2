"""Suites that run by themselves: schedules, updates of a knowledge base, gates, messages."""
