"""The judge: its protocol, its names, its errors, and the log-probabilities of its replies."""
