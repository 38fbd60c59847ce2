"""Token estimates: close enough to split by, and splitting that loses, moves and cuts nothing of any text."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalhouse.prompts import Item
from evalhouse.tasks.asking.splitting import split_by_tokens
from evalhouse.tasks.asking.usage import estimate_items, estimate_tokens

TEXTS = st.text(max_size=60) | st.integers(0, 400).map("word ".__mul__) | st.integers(0, 200).map("灯塔".__mul__)


@st.composite
def draw_items(draw: st.DrawFn) -> list[Item]:
    texts = draw(st.lists(TEXTS, max_size=12))
    return [Item(id=f"C{rank}", text=text) for rank, text in enumerate(texts, start=1)]


@given(items=draw_items(), most=st.integers(1, 400))
def test_splitting_loses_moves_and_cuts_nothing(items: list[Item], most: int) -> None:
    groups = split_by_tokens(items, most)
    assert [item for group in groups for item in group] == items
    assert all(groups)
    assert all(estimate_items(group) <= most for group in groups if len(group) > 1)


@given(items=draw_items(), most=st.integers(1, 400))
def test_a_group_ends_only_where_the_next_item_has_no_room(items: list[Item], most: int) -> None:
    groups = split_by_tokens(items, most)
    for group, following in pairwise(groups):
        assert estimate_items([*group, following[0]]) > most


@given(one=TEXTS, other=TEXTS)
def test_more_text_is_never_fewer_tokens(one: str, other: str) -> None:
    assert estimate_tokens(one + other) >= max(estimate_tokens(one), estimate_tokens(other)) >= 1


@pytest.mark.parametrize("text", ["The cafe on the pier serves fish soup on Fridays.", "word " * 500])
def test_one_letter_of_another_script_changes_little(text: str) -> None:
    """The estimate goes another way for a text that is not all ASCII, and must not jump there."""
    assert estimate_tokens(text.replace("w", "ŵ", 1) + "é") == pytest.approx(estimate_tokens(text), rel=0.25)


def test_an_id_takes_room_as_well() -> None:
    items = [Item(id=f"A{number}", text="Yes.") for number in range(100)]
    assert estimate_items(items) > 2 * sum(estimate_tokens(item.text) for item in items)
    assert estimate_items([]) == 0
