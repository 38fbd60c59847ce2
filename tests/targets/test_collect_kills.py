"""`kill -9` while the bot is asked, and `evalhouse resume`: nothing that came back is asked for again.

A response is on disk as soon as it came, long before it is in the warehouse. So after a kill the questions that were
asked and have no response are at most the ones in flight, at any time.
"""

from __future__ import annotations

import random
import signal
from collections import Counter
from pathlib import Path

import pytest
from cli_process import finish, wait_for
from collect_house import build_harbour

N_QUESTIONS = 60
CONCURRENCY = 4
N_KILLS = 3
SEED = 20261121


@pytest.mark.slow
def test_a_killed_run_asks_again_only_for_what_was_in_flight(tmp_path: Path, prefect_home: Path) -> None:
    dice = random.Random(SEED)
    harbour = build_harbour(
        tmp_path / "harbour", {"PREFECT_HOME": str(prefect_home)}, concurrency=CONCURRENCY, slow_s=0.02
    )
    with harbour.bot:
        rows = [{"id": f"q{n}", "question": f"Who was mayor number {n}?"} for n in range(N_QUESTIONS)]
        harbour.write_questions(rows)
        arguments = ["run", "harbour.toml"]
        for _ in range(N_KILLS):
            n_before = harbour.bot.stats.n_requests
            process = harbour.place.start(*arguments)
            enough = n_before + dice.randrange(1, 12)
            wait_for(lambda enough=enough: harbour.bot.stats.n_requests >= enough, process)  # type: ignore[misc]
            process.send_signal(signal.SIGKILL)
            assert finish(process).status == -signal.SIGKILL
            (run_id,) = (row["run_id"] for row in harbour.read("select run_id from runs"))
            arguments = ["resume", run_id]
        finished = harbour.place.call("resume", run_id, "--json")
        assert finished.status == 0, finished.stderr
        asked = Counter(harbour.bot.stats.questions)
    assert asked.keys() == {row["question"] for row in rows}
    n_again = asked.total() - N_QUESTIONS
    print(f"{N_KILLS} kills, {N_QUESTIONS} questions, {n_again} asked again")
    assert n_again <= N_KILLS * CONCURRENCY
    responses = harbour.read("select count(*) as n, count(distinct sample_id) as n_samples from responses")
    assert responses == [{"n": N_QUESTIONS, "n_samples": N_QUESTIONS}]
    loaded = harbour.read(
        "select sample_id from run_samples join samples using (sample_id, input_hash) join responses using (sample_id) "
        "where samples.answer = responses.answer order by ordinal"
    )
    assert [row["sample_id"] for row in loaded] == [row["id"] for row in rows]
    folder = harbour.warehouse.location.journal_path / "responses"
    assert list(folder.iterdir()) == [], "and nothing is left beside the warehouse"
