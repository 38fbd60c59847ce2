"""The pictures of `evalhouse ui` in the README and the guides: eight nights of the sample dataset, seen in Chromium.

    python tests/ui/pictures.py [--folder flows/guides/images]

The lexical judge judges all of it on this machine. On some nights a few answers fall silent, and in the last one the
retrieval finds other documents for a third of the questions, which is what the pages then say.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "helpers"))

from browser import Page, open_browser  # noqa: E402
from ui_house import serve_ui  # noqa: E402

from evalhouse.flows.start import evaluate  # noqa: E402

SAMPLE = ROOT / "warehouse" / "sample_data" / "sample.jsonl"
N_NIGHTS = 8
SILENT = {1: 3, 3: 9, 4: 6}  # by night how many answers are empty
OTHERWISE = {7: 3}  # by night: every so many questions get the documents of another one
# By name of the picture the page, and how much of it is seen.
PICTURES = {
    "ui_series": ("/", 1280, 330),
    "ui_run": ("/runs/latest", 1280, 900),
    "ui_sample": ("/runs/latest/sample?id={sample}", 1280, 900),
    "ui_compare": ("/compare?base=previous&candidate=latest", 1280, 900),
    "ui_variants": ("/compare?runs=night%203,night%204,night%208&column=topic", 1280, 900),
    "ui_sql": ("/sql?q=from%20run_scores%20where%20run_id%20%3D%20getvariable(%27latest%27)", 1280, 760),
}
SHOWN = "en-devices-01"


def make_nights() -> Iterator[list[dict[str, Any]]]:
    """The English part of the dataset as each night finds it."""
    rows = [json.loads(line) for line in SAMPLE.read_text(encoding="utf-8").splitlines()]
    rows = [row for row in rows if row["language"] == "en"]  # a machine without fonts for Chinese shows boxes
    for night in range(N_NIGHTS):
        changed = [dict(row) for row in rows]
        for place in range(SILENT.get(night, 0)):
            changed[5 * place]["answer"] = ""
        for place in range(0, len(rows), OTHERWISE.get(night, len(rows) + 1)):
            changed[place]["contexts"] = rows[(place + 17) % len(rows)].get("contexts") or []
        yield changed


def judge_nights(warehouse: Path) -> None:
    os.chdir(warehouse.parent)  # pages name the dataset as it was named
    path = Path("shop.jsonl")
    for number, rows in enumerate(make_nights()):
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        evaluate(path, judge="lexical", warehouse=str(warehouse), label=f"night {number + 1}", tags=["shop"])
        print(f"night {number + 1} of {N_NIGHTS}", flush=True)


def take(page: Page, address: str, folder: Path) -> None:
    for name, (form, width, height) in PICTURES.items():
        page.show_as(width=width, height=height)
        page.visit(address + form.format(sample=SHOWN))
        page.evaluate("new Promise((done) => setTimeout(done, 700))")  # charts are drawn when they come into view
        page.take_picture(folder / f"{name}.png")
        print(f"{folder / name}.png", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=ROOT / "flows" / "guides" / "images")
    parser.add_argument("--warehouse", type=Path, help="keep the nights here, and use them again")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="evalhouse-pictures-") as name:
        warehouse = (given.warehouse or Path(name) / "evalhouse.duckdb").resolve()
        folder = given.folder.resolve()
        os.environ["PREFECT_HOME"] = str(Path(name) / "prefect")
        if not warehouse.exists():
            judge_nights(warehouse)
        with serve_ui(warehouse) as address, open_browser() as browser:
            take(browser.open_page(), address, folder)


if __name__ == "__main__":
    main()
