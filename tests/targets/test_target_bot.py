"""The bot that other tests evaluate does what they rely on."""

import subprocess
import sys
import urllib.request
from pathlib import Path

import orjson
import pytest
from rag_bot import UNKNOWN, UNKNOWN_CHINESE, answer_question, start_rag_bot
from target_house import TALL, TALL_ANSWER, ask_once, write_documents


def test_a_changed_document_changes_the_answer(tmp_path: Path) -> None:
    folder = write_documents(tmp_path)
    assert answer_question(folder, TALL)["answer"] == TALL_ANSWER
    (folder / "paris.txt").write_text("The Eiffel Tower is 312 metres tall without its antenna.\n")
    found = answer_question(folder, TALL)
    assert found["answer"] == "The Eiffel Tower is 312 metres tall without its antenna."
    assert [context["id"] for context in found["contexts"]] == ["paris.txt#1"]


def test_the_best_paragraphs_come_first_and_no_others(tmp_path: Path) -> None:
    folder = write_documents(tmp_path)
    found = answer_question(folder, "Is Paris, the capital of France, where the Eiffel Tower stands?")
    assert [context["id"] for context in found["contexts"]] == ["paris.txt#1", "paris.txt#2"]
    assert answer_question(folder, "Who wrote Faust?") == {"answer": UNKNOWN, "contexts": []}
    assert answer_question(folder, "谁写了浮士德？") == {"answer": UNKNOWN_CHINESE, "contexts": []}


async def test_only_the_token_opens_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOT_TOKEN", "tok-123456")
    with start_rag_bot(write_documents(tmp_path), token="tok-123456") as bot:
        closed = await ask_once(url=bot.url)
        opened = await ask_once(url=bot.url, headers={"Authorization": "Bearer ${BOT_TOKEN}"})
        assert bot.stats.statuses == {401: 1, 200: 1}
    assert closed.error == (
        'status 401: {"error":"the token is wrong"}; check the headers, and the environment\'s values in them'
    )
    assert opened.answer == TALL_ANSWER


async def test_broken_answers_are_broken(tmp_path: Path) -> None:
    with start_rag_bot(write_documents(tmp_path), broken_first=1) as bot:
        assert "the body is no JSON" in str((await ask_once(url=bot.url)).error)
        bot.reset()
        bot.configure(broken_first=0)
        assert (await ask_once(url=bot.url)).answer == TALL_ANSWER
        assert bot.stats.questions == [TALL]


async def test_as_a_process_it_tells_where_it_is_and_what_it_was_asked(tmp_path: Path) -> None:
    command = [
        sys.executable,
        str(Path(__file__).parents[1] / "helpers" / "rag_bot.py"),
        str(write_documents(tmp_path)),
    ]
    with subprocess.Popen([*command, "--fail-first", "1"], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            places = orjson.loads(process.stdout.readline())
            response = await ask_once(url=places["url"])
            with urllib.request.urlopen(places["stats_url"], timeout=30) as told:
                stats = orjson.loads(told.read())
        finally:
            process.terminate()
    assert (response.answer, response.attempts) == (TALL_ANSWER, 2)
    assert (stats["n_requests"], stats["questions"], stats["max_in_flight"]) == (2, [TALL, TALL], 1)
    assert stats["statuses"] == {"503": 1, "200": 1}
