"""A reply in the words of the prompt's example is a copy, unless the words fit the data as well."""

import pytest

from evalhouse.prompts import BlockValue, Item, Prompt, list_languages, load_prompts
from evalhouse.prompts.loader import build_block

PROMPTS = [prompt for language in list_languages() for prompt in load_prompts(language).values()]
IDS = [f"{prompt.language} {prompt.name}" for prompt in PROMPTS]
OTHER: dict[str, BlockValue] = {
    "question": "How many days of leave do new staff get? 新员工有几天年假？",
    "contexts": [Item(id="C1", text="New staff get 24 days of annual leave. 新员工每年有24天年假。")],
}


@pytest.mark.parametrize("prompt", PROMPTS, ids=IDS)
def test_words_of_an_example_fit_its_data_and_are_copies_for_other_data(prompt: Prompt) -> None:
    """Every prompt has some texts about the content of its example."""
    for example in prompt.examples:
        data = {name: build_block(value) for name, value in example.data.items()}
        assert prompt.list_copied(walk_texts(example.reply), data) in ((), set())
    texts = [text for example in prompt.examples for text in walk_texts(example.reply)]
    copied = prompt.list_copied(texts, OTHER)
    assert copied
    assert prompt.list_copied([f"{text} 24" for text in texts], OTHER) == ()


def test_reason_that_fits_any_data_is_not_a_copy() -> None:
    prompt = load_prompts()["classify"]
    assert prompt.list_copied(["G1 has the same in other words.", "A1 has the same in other words."], OTHER) == ()
    assert set(prompt.list_copied(["No A item mentions the roots."], OTHER)) == {"No A item mentions the roots."}


def walk_texts(value: object) -> list[str]:
    if isinstance(value, dict | list):
        return [text for part in (value.values() if isinstance(value, dict) else value) for text in walk_texts(part)]
    return [value] if isinstance(value, str) else []
