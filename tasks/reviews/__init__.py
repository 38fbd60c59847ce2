"""The labels that people give to verdicts: drawing verdicts, exporting them, importing the labels."""
