"""Two runs compared, and the statistics that comparing and agreement need."""

from typing import Final

POWER: Final = 0.8
"""The default chance to see a drop; here, where commands can read it without loading the statistics."""
