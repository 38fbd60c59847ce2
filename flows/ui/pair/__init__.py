"""Two runs side by side: what differs, what moved and why, and one sample in both."""
