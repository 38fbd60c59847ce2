"""Print the shape of the code: files, lines, lines per function, private functions called once, imports of a small run.

    python tests/benchmarks/shape.py            # the figures, one a line, with the limit of each
    python tests/benchmarks/shape.py --list     # and the files and functions behind them

A private function (`_name`) counts as called once when its file mentions it once beside its definition. The imports
are the files of the product that `evalhouse run` of one row by the lexical judge loads, up to the first line of the
flow and in all.
"""

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("flows", "tasks", "prompts", "warehouse")
MAX_LINES_OF_FILE = 700
ROW = {"question": "When does it open?", "answer": "At nine.", "ground_truth": "At nine.", "contexts": ["At nine."]}
# Runs in a separate process: the profiler notes what is loaded when the flow's function is entered.
COUNT_IMPORTS = """
import sys
from evalhouse.flows.cli import main

def list_own():
    return sorted(name for name, module in list(sys.modules.items()) if name.startswith("evalhouse.")
                  and not (getattr(module, "__file__", None) or "").endswith("__init__.py"))

before = []
def note_flow(frame, event, _):
    if event == "call" and frame.f_code.co_name == "judge_run" and not before:
        before.extend(list_own())
        sys.setprofile(None)

sys.setprofile(note_flow)
sys.argv = ["evalhouse", "run", "one.jsonl", "--judge", "lexical"]
try:
    main()
except SystemExit as end:
    assert not end.code, end
finally:
    sys.setprofile(None)
    import json
    with open("imports.json", "w") as file:
        heavy = [name for name in ("numpy", "pyarrow", "scipy", "openai") if name in sys.modules]
        json.dump({"before": before, "all": list_own(), "heavy": heavy}, file)
"""


def main() -> None:
    """Print every figure beside its limit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="also list long files and functions called once")
    chosen = parser.parse_args()
    files = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    lengths = {path: path.read_text(encoding="utf-8").count("\n") for path in files}
    n_functions, called_once = 0, []
    for path in files:
        text = path.read_text(encoding="utf-8")
        mentions = Counter(re.findall(r"\b_[a-z]\w*\b", text))
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                n_functions += 1
                if node.name.startswith("_") and not node.name.startswith("__") and mentions[node.name] <= 2:
                    called_once.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}")
    n_lines = sum(lengths.values())
    test_lines = sum(path.read_text(encoding="utf-8").count("\n") for path in (ROOT / "tests").rglob("*.py"))
    imports = count_imports()
    too_long = {path: length for path, length in lengths.items() if length > MAX_LINES_OF_FILE}
    print(f"files                                {len(files):>7,}   at most    230")
    print(f"lines                                {n_lines:>7,}   at most 62,000")
    print(f"lines per function                   {n_lines / n_functions:>7.1f}   at least  22.0")
    print(f"private functions called once        {len(called_once) / n_functions:>7.1%}   at most  15.0%")
    print(f"files over {MAX_LINES_OF_FILE} lines                 {len(too_long):>7,}   at most      0")
    print(f"files a one-row run imports          {len(imports['all']):>7,}   at most     60")
    print(f"files it imports before the flow     {len(imports['before']):>7,}   at most     50")
    print(f"lines of tests                       {test_lines:>7,}   at most 66,000")
    if chosen.list:
        print(*(f"{path.relative_to(ROOT)} {length}" for path, length in too_long.items()), sep="\n")
        print(*called_once, sep="\n")
        print(*imports["all"], sep="\n")


def count_imports() -> dict[str, list[str]]:
    """Return the modules of the product that a run of one row loads: before its flow begins, and in all."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "one.jsonl").write_text(json.dumps(ROW) + "\n", encoding="utf-8")
        ended = subprocess.run(
            [sys.executable, "-c", COUNT_IMPORTS],
            cwd=folder,
            env={**os.environ, "PREFECT_HOME": str(Path(folder, "prefect"))},
            capture_output=True,
            text=True,
            check=False,
        )
        if ended.returncode:
            sys.exit(ended.stderr)
        counted: dict[str, list[str]] = json.loads(Path(folder, "imports.json").read_text(encoding="utf-8"))
        return counted


if __name__ == "__main__":
    main()
