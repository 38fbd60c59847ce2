"""Judges and embeddings that are models."""
