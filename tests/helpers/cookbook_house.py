"""A warehouse with something to find for every query of the cookbook: three nights over one small harbour.

The first night asks everything. The second asks everything again, and the judge has changed its mind about one label.
On the third the bot answers one question worse, and everything unchanged is reused. Votes are split, a rubric's rule
caps a rating, one reply cannot be read, and one question has no answer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
from cli_house import write_dataset
from cli_process import Place
from endpoint import running_endpoint
from endpoint_replies import Asked, compose_reply

N_NIGHTS = 3
METRICS = (
    "factual_f1,context_recall,context_precision,faithfulness,hallucination,relevance_final,answer_relevancy,"
    "citation_recall"
)
CONTEXTS = [
    {"id": "tables", "text": "The tables say that high tide at Brankmouth is at 6 in the morning."},
    {"id": "gulls", "text": "Gulls nest on the pier. The harbour is closed on Mondays."},
]
GRADES: dict[str, dict[str, Any]] = {
    "relevance": {"unrelated": {"reason": "It is about the tide.", "verdict": False},
     "accuracy": {"reason": "The hour is another one.", "rating": 2},
     "comprehensiveness": {"reason": "All is said.", "rating": 9},
     "context_precision": {"reason": "It stands in C1.", "rating": 3}, "final": 0.9},
    "questions": {"reason": "It names an hour.", "noncommittal": False,
     "questions": ["When is high tide?", "What is the hour of the tide?", "When does the water stand high?"]},
}  # fmt: skip
# As a bot would have left them that takes ten times as long on the last night.
_RESPONSES = """
insert into responses (run_id, sample_id, status, latency_ms)
select run_id, sample_id, 'ok', if(label = 'night 3', 1000, 100) from run_samples join runs using (run_id)
"""
# A question of a test set, and what a person decided on it.
_DECISIONS = """
insert into testset_changes (set_hash, run_id, question_id, change, before, after)
select 'set-1', min(run_id), 'q-1', 'new', null, null from runs
union all
select 'set-2', max(run_id), 'q-1', 'dropped', '{"kind": "fact", "language": "en"}',
       json_object('reviewer', 'Ann', 'reviewed_at', max(started_at)) from runs
"""
PRICES = "judge: [1.0, 4.0]\n"


def make_rows(night: int) -> list[dict[str, Any]]:
    """The dataset of a night, counted from 1."""
    tide = "High tide at Brankmouth is at 6 in the morning."
    of_tide = {"question": "When is high tide at Brankmouth?", "ground_truth": tide, "contexts": CONTEXTS}
    worse = "Nobody knows." if night == N_NIGHTS else tide
    return [
        {"id": "tide-1", "answer": f"{tide} The harbour is closed on Mondays.", "harbour": "north", **of_tide},
        {"id": "tide-2", "answer": worse, "harbour": "south", **of_tide},
        {"id": "tide-3", "answer": f"{tide} A brass band welcomes every ferry [2].", "harbour": "south", **of_tide},
        {"id": "tide-4", "answer": "The spoilt reply lies at berth 9.", "harbour": "north", **of_tide},
        {"id": "silent", "question": "Who keeps the light?", "ground_truth": "Maud keeps it.", "contexts": CONTEXTS},
    ]


def build_nights(folder: Path, prefect_home: Path) -> Path:
    """The path of a fresh warehouse with the three runs."""
    night = 1

    def classify(asked: Asked) -> dict[str, Any] | str:
        reply = compose_reply(asked)
        assert isinstance(reply, dict)
        text = " ".join(asked.texts[-1:])
        if "spoilt" in text:
            return "no verdict at all"
        for verdict in reply["verdicts"]:
            is_first = verdict["id"] == "A1"
            if is_first and (("brass band" in text and night == 2) or asked.body["seed"] == 3):
                verdict["label"] = "FP"
        return reply

    def answer_rubric(asked: Asked) -> dict[str, Any]:
        return GRADES[asked.body["response_format"]["json_schema"]["name"]]

    (folder / "prices.yaml").write_text(PRICES, encoding="utf-8")
    with running_endpoint(models=("judge",), script={"classify": classify, "other": answer_rubric}) as endpoint:
        variables = {
            "PREFECT_HOME": str(prefect_home), "OPENAI_BASE_URL": endpoint.base_url, "OPENAI_API_KEY": "sk-none",
        }  # fmt: skip
        place = Place(folder=folder, variables=variables)
        asked = ("--judge", "openai:judge", "--metrics", METRICS, "--votes", "3", "--prices", "prices.yaml")
        for night in range(1, N_NIGHTS + 1):  # `classify` reads it
            write_dataset(folder, make_rows(night), "tides.jsonl")
            more = ("--fresh",) if night == 2 else ()
            finished = place.call("run", "tides.jsonl", *asked, "--attempts", "1", "--label", f"night {night}", *more)
            assert finished.status == 3, finished.stdout + finished.stderr
        nights = place.call("runs", "--json").document
        finished = place.call("prefer", nights[-1]["run_id"], nights[0]["run_id"], "--judge", "lexical")
        assert finished.status == 0, finished.stdout + finished.stderr
    path = folder / "evalhouse.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute(_RESPONSES)
        connection.execute(_DECISIONS)
    return path
