"""What a judge is: its protocol, its errors, and what a reply may bring along."""
