"""The drops that a nightly gate sees and forgets: a simulation of histories of nights, no network, no warehouse.

    python tests/benchmarks/gate_nights.py [--histories 100 --samples 200 --noise 0.2 --limit 0.02 --grades graded …]

Three bots, each in so many histories: one of whose answers 40 % break on a night and are fixed later; one that loses a
point of its mean score every night; and one that stays the same. Four gates with the same limit on the drop look at the
same nights: with the last completed run as the baseline, whether its gate passed or not; with the last run that
passed; with that and the trend, which is the default; and with the mean of the last five that passed and the trend.
`tests/helpers/gate_histories.py` says how a night is drawn.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1] / "helpers"))

from gate_histories import GRADES, Floats, Gate, World, find_first, run_nights

N_NIGHTS = 30
BROKEN = range(5, 20)
DRIFT_NIGHTS = 10
GATES = {
    "previous_any, no trend": {"against": "previous_any"},
    "passed, no trend": {"against": "passed"},
    "passed, trend (default)": {"against": "passed", "has_trend": True},
    "mean_of_passed, trend": {"against": "mean_of_passed", "has_trend": True},
}
Outcomes = list[dict[str, str]]


def main() -> None:
    options = _parse()
    world = World(n_samples=options.samples, noise=options.noise, grades=options.grades)
    print(
        f"{options.histories} histories, {options.samples} samples, scores {options.grades}, {options.noise:.0%} of "
        f"them drawn again each night; max_drop {options.limit:g}, trend {options.limit / 2:g}\n"
    )
    names = [name for name in GATES if options.gates in name]
    _print_broken(world, options, names)
    for after in (1, 11):
        _print_drift(world, options, names, after)
    _print_quiet(world, options, names)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--histories", type=int, default=100)
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument(
        "--noise", type=float, default=0.2, help="share of scores that the judge draws again each night"
    )
    parser.add_argument("--limit", type=float, default=0.02, help="most drop; the trend's is half of it")
    parser.add_argument("--loss", type=float, default=0.01, help="of the mean, each night")
    parser.add_argument("--broken", type=float, default=0.4, help="share of the answers that break")
    parser.add_argument("--grades", choices=list(GRADES), default="graded")
    parser.add_argument("--gates", default="", help="only those whose name holds this")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def _print_broken(world: World, options: argparse.Namespace, names: Sequence[str]) -> None:
    share, n_broken = options.broken, len(BROKEN)
    print(f"{share:.0%} of the answers broken for {n_broken} nights, then fixed\n")
    print("| gate | first broken night failed | all broken nights failed | first fixed night passed |")
    print("|---|--:|--:|--:|")
    for name in names:
        histories = _run(name, options, partial(world.break_down, share, nights=BROKEN, n_nights=BROKEN.stop + 1))
        counts = [
            sum(outcomes[BROKEN.start]["gate"] == "failed" for outcomes in histories),
            sum(all(outcomes[night]["gate"] == "failed" for night in BROKEN) for outcomes in histories),
            sum(outcomes[BROKEN.stop]["gate"] == "passed" for outcomes in histories),
        ]
        print(f"| {name} | {' | '.join(map(str, counts))} |")
    print()


def _print_drift(world: World, options: argparse.Namespace, names: Sequence[str], after: int) -> None:
    print(f"{options.loss:g} lost every night, after {after} quiet ones: found within {DRIFT_NIGHTS} nights\n")
    print("| gate | found | by the trend | by the drop | median night |")
    print("|---|--:|--:|--:|--:|")
    for name in names:
        make = partial(world.get_worse, options.loss, after=after, n_nights=after + DRIFT_NIGHTS)
        histories = [outcomes[after:] for outcomes in _run(name, options, make)]
        found = [night + 1 for outcomes in histories if (night := find_first(outcomes, "gate")) is not None]
        print(f"| {name} | {_count_each(histories)} | {np.median(found) if found else '–'} |")
    print()


def _print_quiet(world: World, options: argparse.Namespace, names: Sequence[str]) -> None:
    print(f"Nothing changed for {N_NIGHTS} nights: histories with a false alarm\n")
    print("| gate | any | of the trend | of the drop |")
    print("|---|--:|--:|--:|")
    for name in names:
        print(f"| {name} | {_count_each(_run(name, options, partial(world.stay, N_NIGHTS)))} |")


def _run(name: str, options: argparse.Namespace, make: Callable[..., Iterator[Floats]]) -> list[Outcomes]:
    """All histories of a gate, each drawn by a separate generator, which is the same for every gate."""
    given = GATES[name]
    trend = options.limit / 2 if "has_trend" in given else None
    return [
        run_nights(
            Gate(limit=options.limit, against=str(given["against"]), trend=trend),
            make(generator=np.random.default_rng([options.seed, history])),
        )
        for history in range(options.histories)
    ]


def _count_each(histories: Sequence[Outcomes]) -> str:
    """Counts of the histories with a night that did not pass: by the gate, the trend, the drop."""
    counts = [
        sum(find_first(outcomes, kind) is not None for outcomes in histories) for kind in ("gate", "trend", "max_drop")
    ]
    return " | ".join(map(str, counts))


if __name__ == "__main__":
    main()
