"""The bot that other tests evaluate does what they rely on."""

from pathlib import Path

import pytest
from rag_bot import answer_question, start_rag_bot
from target_house import TALL, TALL_ANSWER, ask_once, write_documents


def test_a_changed_document_changes_the_answer(tmp_path: Path) -> None:
    folder = write_documents(tmp_path)
    assert answer_question(folder, TALL)["answer"] == TALL_ANSWER
    (folder / "paris.txt").write_text("The Eiffel Tower is 312 metres tall without its antenna.\n")
    found = answer_question(folder, TALL)
    assert found["answer"] == "The Eiffel Tower is 312 metres tall without its antenna."
    assert [context["id"] for context in found["contexts"]] == ["paris.txt#1"]


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
        assert "the body is not valid JSON" in str((await ask_once(url=bot.url)).error)
        bot.reset()
        bot.configure(broken_first=0)
        assert (await ask_once(url=bot.url)).answer == TALL_ANSWER
        assert bot.stats.questions == [TALL]
