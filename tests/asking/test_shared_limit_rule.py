"""The rule by which processes share a limit: fair, nothing left over, and never too much in any order of events."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalhouse.tasks.asking.boards import Holding, Need, Share, claim_slots, divide_slots


@pytest.mark.parametrize(
    ("wishes", "limit", "parts"),
    [
        ({"a": 0}, 16, {"a": 16}),  # alone: everything, whatever it wishes at the moment
        ({"a": 16, "b": 16}, 16, {"a": 8, "b": 8}),
        ({"a": 16, "b": 16, "c": 16}, 16, {"a": 5, "b": 5, "c": 6}),
        ({"a": 0, "b": 16}, 16, {"a": 1, "b": 15}),  # an idle one lends all but one
        ({"a": 3, "b": 16, "c": 900}, 16, {"a": 3, "b": 6, "c": 7}),
        ({"a": 2, "b": 4}, 16, {"a": 7, "b": 9}),  # what nobody wishes stands ready for all
        ({"a": 0, "b": 5, "c": 5}, 2, {"a": 0, "b": 1, "c": 1}),  # not enough for all: not for those who need none
    ],
)
def test_slots_are_divided_by_wish(wishes: dict[str, int], limit: int, parts: dict[str, int]) -> None:
    assert divide_slots(wishes, limit) == parts


@given(
    wishes=st.dictionaries(st.text(max_size=3), st.integers(0, 5000), min_size=1, max_size=12),
    limit=st.integers(1, 4096),
    turn=st.integers(0, 10**9),
)
def test_no_slot_is_given_twice_or_left_over(wishes: dict[str, int], limit: int, turn: int) -> None:
    parts = divide_slots(wishes, limit, turn=turn)
    assert parts.keys() == wishes.keys()
    assert sum(parts.values()) == limit
    assert min(parts.values()) >= (1 if limit >= len(wishes) else 0)
    if sum(wishes.values()) <= limit - len(wishes):
        assert all(parts[name] >= wish for name, wish in wishes.items())


@given(
    wishes=st.dictionaries(st.text(max_size=3), st.integers(1, 100), min_size=2, max_size=8),
    limit=st.integers(8, 200),
)
def test_whoever_wishes_more_never_gets_less(wishes: dict[str, int], limit: int) -> None:
    parts = divide_slots(wishes, limit)
    ordered = [parts[name] for name in sorted(wishes, key=lambda name: (min(wishes[name], limit), parts[name]))]
    unmet = [parts[name] for name in wishes if parts[name] < min(wishes[name], limit)]
    assert ordered == sorted(ordered)
    assert not unmet or max(unmet) - min(unmet) <= 1


def test_with_fewer_slots_than_processes_all_come_to_their_turn() -> None:
    wishes = dict.fromkeys("abcde", 9)
    served = [{name for name, slots in divide_slots(wishes, 2, turn=turn).items() if slots} for turn in range(5)]
    assert {len(names) for names in served} == {2}
    assert set().union(*served) == set(wishes)


def test_a_process_takes_only_what_the_others_do_not_hold() -> None:
    other = Holding(setting=16, wish=16, grant=16)
    newcomer = claim_slots(Need(setting=16, wish=16, held=0), "b", {"a": other})
    assert (newcomer.target, newcomer.grant) == (8, 0)
    first = claim_slots(Need(setting=16, wish=16, held=13), "a", {"b": Holding(setting=16, wish=16, grant=0)})
    assert (first.target, first.grant) == (8, 13)  # what it still uses it does not give up


def test_the_smallest_setting_is_the_limit_of_all() -> None:
    claim = claim_slots(Need(setting=64, wish=64, held=0), "b", {"a": Holding(setting=4, wish=4, grant=2)})
    assert (claim.limit, claim.target, claim.grant) == (4, 2, 2)


class Simulated:
    """A process in a simulation of any order of events: it looks at the rows, starts requests and ends them."""

    def __init__(self, name: str, setting: int) -> None:
        self.name = name
        self.setting = setting
        self.slots = 0
        self.in_flight = 0
        self.waiting = 0

    def look(self, rows: dict[str, Holding]) -> None:
        held = max(self.slots, self.in_flight)
        need = Need(setting=self.setting, wish=min(self.setting, self.in_flight + self.waiting), held=held)
        claim = claim_slots(need, self.name, {name: row for name, row in rows.items() if name != self.name})
        rows[self.name] = Holding(setting=self.setting, wish=need.wish, grant=claim.grant)
        self.slots = min(claim.target, claim.grant)

    def work(self, event: str) -> None:
        if event == "want":
            self.waiting += 7
        elif event == "start" and self.waiting and self.in_flight < self.slots:
            self.waiting -= 1
            self.in_flight += 1
        elif event == "end" and self.in_flight:
            self.in_flight -= 1


@given(
    setting=st.integers(1, 12),
    events=st.lists(
        st.tuples(st.sampled_from("abcd"), st.sampled_from(["look", "want", "start", "start", "end", "die"])),
        max_size=200,
    ),
)
def test_in_no_order_of_events_is_the_limit_exceeded(setting: int, events: list[tuple[str, str]]) -> None:
    rows: dict[str, Holding] = {}
    processes: dict[str, Simulated] = {}
    for name, event in events:
        process = processes.setdefault(name, Simulated(name, setting))
        if event == "die":
            del processes[name]
            rows.pop(name, None)
        elif event == "look":
            process.look(rows)
        else:
            process.work(event)
        assert sum(process.in_flight for process in processes.values()) <= setting
    for _ in range(5):  # once everybody has ended and looked, no slot is held by nobody
        for process in processes.values():
            process.in_flight = 0
            process.look(rows)
    if 0 < len(processes) <= setting:
        assert sum(process.slots for process in processes.values()) == setting


@pytest.mark.parametrize(("slots", "fraction"), [(16, 1.0), (4, 0.25), (0, 1 / 16)])
def test_rates_are_divided_like_slots(slots: int, fraction: float) -> None:
    assert Share(slots=slots, limit=16, again_s=1.0).fraction == fraction
