"""A gate over many nights: it keeps refusing a broken bot, finds a slow loss, and passes quiet nights.

`tests/benchmarks/gate_nights.py` measures the same in more histories and by other gates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from gate_histories import Floats, Gate, World, find_first, run_nights

WORLD = World()
Make = Callable[[np.random.Generator], Iterator[Floats]]


def run_histories(make: Make, n_histories: int, **gate: object) -> list[list[dict[str, str]]]:
    given = {"trend": 0.01, "resamples": 1_000, **gate}
    return [
        run_nights(Gate(**given), make(np.random.default_rng([0, history])))  # type: ignore[arg-type]  # of a test
        for history in range(n_histories)
    ]


def break_down(generator: np.random.Generator) -> Iterator[Floats]:
    return WORLD.break_down(0.4, nights=range(3, 9), n_nights=11, generator=generator)


def get_worse(generator: np.random.Generator) -> Iterator[Floats]:
    return WORLD.get_worse(0.01, after=1, n_nights=11, generator=generator)


def stay(generator: np.random.Generator) -> Iterator[Floats]:
    return WORLD.stay(30, generator)


def count_found(histories: list[list[dict[str, str]]], kind: str) -> int:
    return sum(find_first(outcomes, kind) is not None for outcomes in histories)


@pytest.mark.parametrize("against", ["passed", "mean_of_passed"])
def test_a_broken_bot_fails_every_night_until_it_is_fixed(against: str) -> None:
    for outcomes in run_histories(break_down, 2, against=against):
        assert [outcome["gate"] for outcome in outcomes[3:9]] == ["failed"] * 6
        assert outcomes[9]["gate"] == "passed"


def test_a_plain_previous_run_forgets_what_was_refused() -> None:
    """The effect of the named choice, and why it is not the default."""
    for outcomes in run_histories(break_down, 2, against="previous_any", trend=None):
        assert [outcome["gate"] for outcome in outcomes[3:9]] == ["failed"] + ["passed"] * 5


def test_a_slow_loss_is_found_within_ten_nights_and_quiet_nights_are_let_through() -> None:
    assert count_found(run_histories(get_worse, 10, resamples=2_000), "trend") >= 7
    assert count_found(run_histories(stay, 3), "trend") == 0


@pytest.mark.slow
def test_a_slow_loss_is_found_in_most_histories_and_false_alarms_are_few() -> None:
    histories = run_histories(get_worse, 40, resamples=2_000)
    print(f"found: {count_found(histories, 'trend')} of 40 by the trend, {count_found(histories, 'gate')} by the gate")
    assert count_found(histories, "trend") >= 32
    # At a limit of 0 chance alone decides.
    n_false = count_found(run_histories(stay, 40, limit=0.02, trend=0.0, resamples=2_000), "trend")
    print(f"false alarms: {n_false} of 40 quiet histories")
    assert n_false <= 3
