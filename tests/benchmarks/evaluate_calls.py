"""The cost of a call of `evaluate`: the first of a Python process, and later ones, which find its process
and its Prefect server. One sample, judged by the lexical judge. Prints seconds and the CPU seconds of this process and
all that it has started, and the ratio of the first to the others, which a busy machine changes less.

    python tests/benchmarks/evaluate_calls.py [CALLS]
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

from scale import list_tree, measure_cpu

SAMPLE = {
    "question": "When does the ferry to Aldmoor leave?",
    "ground_truth": "The ferry to Aldmoor leaves at 9:40 from pier 3.",
    "contexts": ["The ferry to Aldmoor leaves at 9:40 from pier 3.", "Dogs travel free on all ferries."],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("calls", nargs="?", type=int, default=20)
    options = parser.parse_args()
    from evalhouse.flows import evaluate  # noqa: PLC0415  # what is measured

    seconds, cpu = [], []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.calls):
            answer = f"The ferry to Aldmoor leaves at 9:40. It has {number} decks."
            began, used = time.monotonic(), measure_cpu(list_tree(os.getpid()))
            evaluate([{**SAMPLE, "answer": answer}], judge="lexical", warehouse=str(Path(folder) / "w.duckdb"))
            seconds.append(time.monotonic() - began)
            cpu.append(measure_cpu(list_tree(os.getpid())) - used)
    for what, measured in (("seconds", seconds), ("CPU seconds", cpu)):
        later = statistics.median(measured[1:])
        print(
            f"{what}: first {measured[0]:.2f}, then {later:.2f} ({min(measured[1:]):.2f} to {max(measured[1:]):.2f}), "
            f"{measured[0] / later:.1f} to 1; all {len(measured)}: {sum(measured):.1f}"
        )


if __name__ == "__main__":
    main()
