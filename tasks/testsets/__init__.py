"""Test sets: questions made from the documents of a knowledge base, and kept true when these change."""
