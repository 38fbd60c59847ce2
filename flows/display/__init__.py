"""What a person at the terminal sees: text, tables, progress, error messages."""
