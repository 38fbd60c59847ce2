"""Reference ids and retrieved ids from a dataset to a score, its lineage, and the warning where they never match."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_process import Place
from dataset_files import write_json_lines

from evalhouse.warehouse.rows.samples import find_owners

METRICS = "hit_at_k,recall_at_k"
WIDE = {"COLUMNS": "200"}


def test_ids_that_match_and_ids_that_never_do(tmp_path: Path, prefect_home: Path) -> None:
    place = Place(folder=tmp_path, variables={"PREFECT_HOME": str(prefect_home), **WIDE})
    row = {
        "id": "q1",
        "question": "How long?",
        "contexts": ["Two years.", "Blue.", "Three."],
        "reference_context_ids": ["shop/Warranty.md", "shop/prices.md"],
    }
    write_json_lines(
        tmp_path / "like.jsonl", [{**row, "context_ids": ["x", r"shop\warranty.md#2", "shop/warranty.md#3"]}]
    )
    write_json_lines(tmp_path / "unlike.jsonl", [{**row, "context_ids": ["17", "18", "19"]}])

    ran = place.call("run", "like.jsonl", "--judge", "lexical", "--metrics", METRICS, "--json")
    assert {name: found["mean"] for name, found in ran.document["metrics"].items()} == {
        "hit_at_k": 1,
        "recall_at_k": 0.5,
    }
    shown = place.call("lineage", "latest", "q1", "recall_at_k").stdout
    lines = [line.strip("│├└─ ") for line in shown.splitlines()]
    assert lines[lines.index("C1 x: Two years.") :][:5] == [
        "C1 x: Two years.",
        r"C2 shop\warranty.md#2, matches shop/warranty.md: Blue.",
        "C3 shop/warranty.md#3, matches shop/warranty.md: Three.",
        "reference id shop/Warranty.md: retrieved as C2, C3",
        "reference id shop/prices.md: not retrieved",
    ]

    unlike = place.call("run", "unlike.jsonl", "--judge", "lexical", "--metrics", METRICS)
    assert unlike.status == 0, unlike.stderr
    warning = next(line for line in unlike.stdout.splitlines() if line.startswith("warning: nothing was scored by"))
    assert warning.startswith(f"warning: nothing was scored by {METRICS.replace(',', ', ')} (ids_do_not_match 1). No ")
    assert "such as 'shop/Warranty.md', matches a retrieved id, such as '17'" in warning


@pytest.mark.parametrize(
    ("an_id", "owners"),
    [
        ("faq.md#3", ["faq.md"]),
        ("shop/faq.md/3", ["shop", "shop/faq.md"]),
        ("handbook/3", ["handbook"]),
        ("handbook/leave", ["handbook"]),
        ("team:handbook:3", ["team", "team:handbook"]),
        ("https://docs.acme.com/billing/refunds", []),
        ("https://docs.acme.com:8080/billing/refunds#2", ["https://docs.acme.com:8080/billing/refunds"]),
        ("https://acme.com/faq.html/3", ["https://acme.com/faq.html"]),
        ("https://acme.com/faq:3", ["https://acme.com/faq"]),
        ("/docs/faq:chunk-3", ["/docs/faq"]),
        ("https://acme.com/guide/#install", ["https://acme.com/guide"]),
        ("https://acme.com/guide/", []),
        ("/app/data/monopoly.pdf:6:2", ["/app/data/monopoly.pdf", "/app/data/monopoly.pdf:6"]),
        ("https://me@acme.com/faq|3", ["https://me@acme.com/faq"]),
        ("docs.acme.com/billing", []),
        ("/billing/refunds", []),
    ],
)
def test_each_page_of_a_site_is_a_document(an_id: str, owners: list[str]) -> None:
    """A retrieved home page counted as each page of its site, and recall was 1 where no wanted page was found."""
    assert find_owners([an_id]) == {an_id: [*owners, an_id.removesuffix("/")]}
