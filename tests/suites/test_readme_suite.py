"""The suite of the README, unchanged: it passes on a good night and fails on a bad one."""

from __future__ import annotations

import json
import re
from pathlib import Path

from cli_process import Place
from target_server import Canned, Sent, answer_json, serving

README = Path(__file__).resolve().parents[2] / "README.md"
FACTS = {
    f"Which ship lies at berth {number}?": f"Ship number {number * 7} lies at berth {number}." for number in range(20)
}


def test_readme_suite_passes_on_a_good_night_and_fails_on_a_bad_one(tmp_path: Path, prefect_home: Path) -> None:
    match = re.search(
        r"<!-- nightly -->\n```toml\n(.*?)```\n<!-- end -->", README.read_text(encoding="utf-8"), re.DOTALL
    )
    assert match
    place = Place(folder=tmp_path, variables={"PREFECT_HOME": str(prefect_home), "OPENAI_API_KEY": "sk-test"})
    rows = [{"question": question, "ground_truth": fact} for question, fact in FACTS.items()]
    (tmp_path / "questions.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    is_good = True

    def answer(sent: Sent) -> Canned:
        assert isinstance(sent.body, dict)
        right = FACTS[sent.body["question"]]
        return answer_json({"answer": right if is_good else "The harbour is closed on Mondays.", "contexts": [right]})

    with serving(answer) as bot:
        suite = match[1].replace("http://localhost:8099/ask", bot.url)
        assert suite.count(bot.url) == 1
        (tmp_path / "nightly.toml").write_text(suite, encoding="utf-8")
        good = place.call("run", "nightly.toml", "--judge", "lexical")
        covered = place.call("gate", "latest", "--min-coverage", "0.9")
        is_good = False
        bad = place.call("run", "nightly.toml", "--judge", "lexical")
    for passed in (good, covered):
        assert passed.status == 0, passed.stdout + passed.stderr
        assert "gate passed" in passed.stdout + passed.stderr
    assert bad.status == 1, bad.stdout + bad.stderr
    assert "gate failed" in bad.stdout + bad.stderr
