"""How far one sample walks: the files of ours that `evalhouse run` enters, and how often control passes between them.

    python tests/benchmarks/trace.py            # the figures
    python tests/benchmarks/trace.py --files    # and each file, in the order of its first entry, with its entries
    python tests/benchmarks/trace.py --pairs    # and which function is entered after which file's, where it is often

One row of a JSON Lines file is judged by the lexical judge, in this process, under a profiler. Counted are the frames
of our own functions: importing a module, and looking for one, is left out. A passage is the entry of a function that
stands in another file than the one entered before it by that thread; a coroutine that is woken is entered again, a
return is none. The flow begins when `evaluate_run` is entered.
"""

import argparse
import json
import os
import sys
import tempfile
import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

FOLDERS = ("flows", "tasks", "prompts", "warehouse")
SAMPLE = {
    "question": "When does the ferry to Aldmoor leave?",
    "answer": "The ferry to Aldmoor leaves at 9:40. It takes dogs.",
    "ground_truth": "The ferry to Aldmoor leaves at 9:40 from pier 3.",
    "contexts": ["The ferry to Aldmoor leaves at 9:40 from pier 3.", "Dogs travel free on all ferries."],
}


@dataclass
class Walk:
    """What has been seen: entries per file in the order of their first, and passages, up to the flow and in all."""

    root: str
    entries: Counter[str] = field(default_factory=Counter)
    pairs: Counter[str] = field(default_factory=Counter)
    passages: int = 0
    files_before_flow: int = 0
    passages_before_flow: int = 0
    flow_has_begun: bool = False
    _last: dict[int, str] = field(default_factory=dict)
    _importing: dict[int, int] = field(default_factory=Counter)

    def follow(self, frame: FrameType, event: str, _: object) -> None:
        """The profiler's hook."""
        if event not in ("call", "return"):
            return
        thread = threading.get_ident()
        code = frame.f_code
        if code.co_name == "<module>" or _is_called_by_import(frame):
            self._importing[thread] += 1 if event == "call" else -1
            return
        name = self._name(frame)
        if event == "return" or self._importing[thread] or name is None:
            return
        if code.co_name == "evaluate_run" and not self.flow_has_begun:
            self.flow_has_begun = True
            self.files_before_flow, self.passages_before_flow = len(self.entries), self.passages
        if name != self._last.get(thread):
            self.passages += self._last.get(thread) is not None
            self.pairs[f"{self._last.get(thread)} -> {name}:{code.co_name}"] += 1
            self.entries[name] += 1
            self._last[thread] = name

    def _name(self, frame: FrameType) -> str | None:
        path = frame.f_code.co_filename
        if not path.startswith(self.root) or frame.f_code.co_name == "<module>":
            return None
        relative = path[len(self.root) :]
        return relative if relative.split("/")[0] in FOLDERS else None


def _is_called_by_import(frame: FrameType) -> bool:
    """Whether Python's import system asks it where a module is."""
    return frame.f_back is not None and frame.f_back.f_code.co_filename.startswith("<frozen importlib")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", action="store_true", help="list every file with its entries")
    parser.add_argument("--pairs", action="store_true", help="list the passages by file and function entered")
    options = parser.parse_args()
    from evalhouse.flows import cli  # noqa: PLC0415  # what is measured

    root = str(Path(cli.__file__).resolve().parents[1]) + "/"
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("one.jsonl").write_text(json.dumps(SAMPLE) + "\n", encoding="utf-8")
        walk = Walk(root)
        threading.setprofile(walk.follow)
        sys.setprofile(walk.follow)
        try:
            cli.main(["run", "one.jsonl", "--judge", "lexical"])
        except SystemExit as ended:
            status = ended.code
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]
    print(f"\nstatus {status}")
    if options.files:
        for name, n_entries in walk.entries.items():
            print(f"{n_entries:5} {name}")
    if options.pairs:
        for pair, n_passages in walk.pairs.most_common(60):
            print(f"{n_passages:5} {pair}")
    print(f"files entered: {len(walk.entries)}, before the flow: {walk.files_before_flow}")
    print(f"passages from file to file: {walk.passages}, before the flow: {walk.passages_before_flow}")


if __name__ == "__main__":
    main()
