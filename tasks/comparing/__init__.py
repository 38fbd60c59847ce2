"""Two runs compared, and the statistics that comparing and agreement need."""
