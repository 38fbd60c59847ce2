"""What was said before a sample's question, as its requests have it: a block of turns T1, T2, … and a prompt that takes
it.

A sample without a conversation is asked as if there were none of this. A request holds the latest turns: at most half
of it is theirs, and what does not fit is left out, the oldest first, which stands on record as the detail of the
sample's extraction.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from evalhouse.prompts import CONVERSATION, TURN_PREFIX, BlockValue, Item, Prompt
from evalhouse.tasks.asking.tokens import estimate_items, leave_room
from evalhouse.warehouse.rows.samples import StoredSample


@dataclass(frozen=True, kw_only=True)
class Before:
    """The turns before a question that go into its requests, with how many older ones do not."""

    turns: tuple[Item, ...] = ()
    n_left_out: int = 0

    @property
    def block(self) -> Mapping[str, BlockValue]:
        """The block of the turns; none where there are none."""
        return {CONVERSATION: self.turns} if self.turns else {}

    @property
    def note(self) -> str | None:
        """What is said of turns that were left out."""
        n = self.n_left_out
        return f"the oldest {n:,} of {n + len(self.turns):,} earlier turns do not fit into a request" if n else None

    def frame(self, prompt: Prompt) -> Prompt:
        """The prompt that takes the turns."""
        return prompt.in_conversation if self.turns else prompt

    def leave_room(self, most: int, *beside: str) -> int:
        """What is left of `most` tokens beside the turns and other texts that go into every request whole."""
        return leave_room(most, *beside, *(turn.text for turn in self.turns))


_NOTHING = Before()


def collect_turns(sample: StoredSample, most: int) -> Before:
    """The turns before a sample's question that fit into half of `most` tokens, the last one whatever its length."""
    if sample.conversation_json is None:
        return _NOTHING
    items = [
        Item(id=f"{TURN_PREFIX}{place}", text=f"{turn.role}: {turn.text}")
        for place, turn in enumerate(sample.conversation, start=1)
    ]
    first = len(items) - 1
    while first > 0 and estimate_items(items[first - 1 :]) <= most // 2:
        first -= 1
    return Before(turns=tuple(items[first:]), n_left_out=max(first, 0))
