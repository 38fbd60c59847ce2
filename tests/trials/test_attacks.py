r"""The proof that no text can leave its block or forge an id: what is asserted on are the messages that are sent.

How a message is fenced (`prompts/render.py`): the last message alone holds data, each block
between `<name nonce>` and `</name nonce>`, each alone on its line. The nonce is eight hex digits of the SHA-256 of all
data of the message, drawn again while it occurs in the data, also in capitals, in other forms of its digits or with
invisible characters inside: a text that would repeat it changes it, and one that was written to hold it makes another
be drawn. Ids (`[A1] `) are at the start of a line, and later lines of an item are indented. Anything that looks
like a tag, like an id at the start of a line or like a control token of a chat template gets a backslash behind its
opening bracket.

Messages are read back here as a careful reader would: by the nonce of the first line, and once more after everything
was taken away that hides a mark from the eye or that a tokenizer may fold (NFKC, invisible characters, look-alikes).
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import orjson
import pytest
from attack_set import (
    STEPS_OF,
    Attack,
    Place,
    Scene,
    Trial,
    find_block,
    list_items,
    load_attacks,
    make_trial,
    make_trials,
    read_nonce,
)
from endpoint import Asked, running_endpoint
from fences import read_blocks
from live_runs import judge_samples, lay_out_run, make_sample, make_settings, point_to

from evalhouse.prompts import TURN_PREFIX, BlockValue, Item, Message, Prompt, load_prompts
from evalhouse.prompts.render import BLOCKS, render_blocks
from evalhouse.tasks.asking.asker import _UNUSABLE_NOTE

ATTACKS = load_attacks()
SCENES: dict[str, Scene] = {scene.language: scene for scene in ATTACKS.scenes}
PROMPTS = {language: load_prompts(language) for language in ("en", "zh")}

# Drawn like the letter or bracket on the right; NFKC leaves them alone.
TWINS = {
    **dict.fromkeys("аαᴀᎪꓮ", "a"), **dict.fromkeys("сϲᴄᏟꓚ\uab9f\uabaf", "c"), **dict.fromkeys("еεᴇ", "e"),
    **dict.fromkeys("ԍɡᏀꓖ", "g"), **dict.fromkeys("оοօ", "o"), **dict.fromkeys("рρ", "p"), **dict.fromkeys("ѕꜱ", "s"),
    **dict.fromkeys("тτᴛ", "t"), **dict.fromkeys("хχ", "x"), **dict.fromkeys("іι", "i"), **dict.fromkeys("ո", "n"),
    **dict.fromkeys("‹〈⟨《ᐸ❮⦑", "<"), **dict.fromkeys("›〉⟩》ᐳ❯⦒", ">"), **dict.fromkeys("【〔⟦〖", "["),
    **dict.fromkeys("】〕⟧〗", "]"), **dict.fromkeys("⁄∕╱", "/"),
    **{chr(0x2776 + place): str(place + 1) for place in range(9)},
}  # fmt: skip
FOLDS = {
    ord(char): plain for twin, plain in TWINS.items() for char in {twin, twin.lower(), twin.upper()} if len(char) == 1
}
UNSEEN = dict.fromkeys(map(ord, "\u115f\u1160\u3164\uffa0\u2800\u180e"))
TAG = re.compile(rf"<\s*(?:/\s*)*(?:{'|'.join(sorted(BLOCKS, key=len, reverse=True))})(?![a-z])[\s0-9a-f]*>")
ID = re.compile(r"^[^\w\n]*\[\s*[acgoq]\s*\d+\s*\]", re.MULTILINE)
TOKEN = re.compile(
    r"<\|[^\s|<>]+\|>|\[/?(?:inst|think|gmask|smask|tool_\w+|system_prompt|available_tools)\]"
    r"|<</?sys>>|</?(?:s|bos|eos|sop|eop|think|tool_call)>|<(?:start|end)_of_turn>"
)


def fold(text: str) -> str:
    """A text as it may reach a model, or strike an eye, that does not look closely."""
    return "\n".join(map(_fold_line, text.split("\n")))


@cache
def _fold_line(line: str) -> str:
    """Fold one line, as no mark crosses the end of a line; most lines are in many messages."""
    seen = "".join(char for char in line if unicodedata.category(char) not in {"Cf", "Cc", "Mn", "Me"})
    return unicodedata.normalize("NFKC", seen.translate(UNSEEN).translate(FOLDS)).casefold().translate(FOLDS)


def undo(text: str) -> str:
    return text.replace("\\", "")


def spread(text: str) -> list[str]:
    """A text's lines as a message may show them, backslashes aside."""
    return [undo(line) for line in text.splitlines()]


def list_ids(data: Mapping[str, BlockValue]) -> dict[str, list[str]]:
    return {name: [item.id for item in list_items(data, name)] for name in data if BLOCKS[name].kind == "items"}


def check_last(content: str, ids: Mapping[str, list[str]], names: list[str]) -> None:
    """Check that the last message has exactly our marks, by the nonce and by anything that looks like one."""
    blocks = read_blocks(content)  # every line is in a block, no line within one has the nonce
    assert list(blocks) == names
    assert {name: list(blocks[name].read_items()) for name in ids} == dict(ids)
    nonce = re.match(r"<\w+ ([0-9a-f]{8})>\n", content)
    assert nonce
    ours = [f"<{slash}{name} {nonce[1]}>" for name in names for slash in ("", "/")]
    assert content.count(nonce[1]) == len(ours)
    folded = fold(content)
    assert folded.count(nonce[1]) == len(ours), "no form of the code is in a text"
    assert TAG.findall(folded) == ours
    assert [re.sub(r"[\s\[\]]", "", mark) for mark in ID.findall(folded)] == [
        item.casefold() for name in names for item in ids.get(name, ())
    ]
    assert TOKEN.findall(folded) == []


def check_messages(messages: tuple[Message, ...], prompt: Prompt, data: Mapping[str, BlockValue]) -> None:
    """Check a request: our own opening to the letter, then the data in their blocks."""
    assert messages[:-1] == prompt.opening
    assert [message.role for message in messages].count("system") == 1
    assert messages[-1].role == "human"
    check_last(messages[-1].content, list_ids(data), list(data))


def check_place(content: str, trial: Trial) -> None:
    """Check that the planted text is whole in its block, and every other block is unchanged."""
    name = find_block(trial.field, trial.step)
    planted, harmless = read_blocks(content), read_blocks(render_blocks(tuple(trial.control), trial.control))
    assert {other: block.lines for other, block in planted.items() if other != name} == {
        other: block.lines for other, block in harmless.items() if other != name
    }
    value = trial.data[name]
    if isinstance(value, str):
        assert [undo(line) for line in planted[name].lines] == spread(value)
    else:
        shown = {item_id: spread(text) for item_id, text in planted[name].read_items().items()}
        assert shown == {item.id: spread(item.text) for item in value}


def cross(attack: Attack) -> Iterator[Trial]:
    """The attack in every field, for every step that reads it, whether it asks for that or not."""
    for field, steps in STEPS_OF.items():
        for step in steps:
            yield make_trial(ATTACKS, attack, field=field, step=step, scene=SCENES[attack.language])


def test_no_attack_leaves_its_block_from_any_field() -> None:
    for trial in (trial for attack in ATTACKS.attacks for trial in cross(attack)):
        for prompts in PROMPTS.values():
            messages = prompts[trial.step].render(trial.data)
            check_messages(messages, prompts[trial.step], trial.data)
            check_place(messages[-1].content, trial)


@pytest.mark.parametrize(
    ("language", "name"), [(language, name) for language, prompts in PROMPTS.items() for name in prompts]
)
def test_no_attack_leaves_its_block_in_any_prompt(language: str, name: str) -> None:
    """Rubrics and other prompts have blocks that no trial of a step fills."""
    prompt = PROMPTS[language][name]
    for attack in ATTACKS.attacks:
        text = str(next(cross(attack)).data["question"])
        data: dict[str, BlockValue] = {
            block: [Item(id=f"{BLOCKS[block].prefix or TURN_PREFIX}{place}", text=text) for place in (1, 2)]
            if kind == "items"
            else text
            for block, kind in prompt.variables.items()
        }
        check_messages(prompt.render(data), prompt, data)


# -- the code that fences a message ------------------------------------------------------------------------------------


def test_the_code_cannot_be_known_beforehand() -> None:
    """An author who knows the rest of a message and its code changes the code by writing anything."""
    for trial in make_trials(ATTACKS):
        before, after = read_nonce(trial.control), read_nonce(trial.data)
        assert before != after
        if "{nonce}" in trial.attack.text:
            assert before in fold(str(trial.data)), "the attack does repeat the code it knows"


# -- the real steps over the wire, asked again -------------------------------------------------------------------------

_SAMPLE_FIELDS: tuple[Place, ...] = ("question", "answer", "ground_truth", "contexts")
_ROLES = {"system": "system", "human": "user", "ai": "assistant"}
_NARROWED = r"Give verdicts for these ids only: [ACG]\d+(?:, [ACG]\d+)*\."


def word_attack(attack: Attack, field: Place) -> str:
    """Return the attack's text as planted in a field, aimed at the first step that reads it."""
    trial = make_trial(ATTACKS, attack, field=field, step=STEPS_OF[field][0], scene=SCENES[attack.language])
    name = find_block(field, trial.step)
    value, control = trial.data[name], trial.control[name]
    if isinstance(value, str) and isinstance(control, str):
        return value.removeprefix(f"{control}\n")
    return list_items(trial.data, name)[0].text.removeprefix(f"{list_items(trial.control, name)[0].text}\n")


def plant(attack: Attack, fields: tuple[Place, ...], number: int) -> Any:  # noqa: ANN401  # a StoredSample
    """A sample with the attack at the end of some of its fields."""
    sample = make_sample(number)
    changes: dict[str, Any] = {}
    for field in fields:
        text = word_attack(attack, field)
        if field == "contexts":
            first, *others = sample.contexts or []
            changes[field] = [f"{first}\n{text}", *others]
        else:
            changes[field] = f"{getattr(sample, field)}\n{text}"
    return make_sample(number, **changes)


def read_kind(body: Mapping[str, Any]) -> str:
    return str(body["response_format"]["json_schema"]["name"])


async def test_a_note_holds_nothing_of_a_reply_or_of_a_text(tmp_path: Path) -> None:
    """Replies that repeat the planted text are refused, and the next request states that in our own words alone."""
    hostile = [attack for attack in ATTACKS.attacks if "{reply}" in attack.text or attack.kind == "forged_item"]
    samples = [plant(attack, _SAMPLE_FIELDS, number) for number, attack in enumerate(hostile, start=1)]
    seen: Counter[str] = Counter()

    def repeat(asked: Asked) -> str | None:
        """Reply with the planted text to the first request of a sample, and with a cut one to the second."""
        about = f"{asked.kind}/{asked.blocks['question'].split(chr(10))[0]}"
        seen[about] += 1
        planted = "\n".join(asked.blocks.values())
        verdicts = [{"id": f"A{place}", "reason": planted, "label": "TP"} for place in (1, 7, 99)]
        return {1: planted.replace("{", "("), 2: orjson.dumps({"verdicts": verdicts}).decode()}.get(seen[about])

    script = dict.fromkeys(("classify", "attribute", "rank"), repeat)
    with running_endpoint(keep_bodies=True, script=script) as endpoint:
        point_to(endpoint.base_url)
        async with lay_out_run(tmp_path, make_settings(attempts=4)) as live_run:
            works = await judge_samples(live_run, samples)
        bodies = list(endpoint.stats.bodies)
    assert all(row["reason"] is None for work in works for row in work.rows["outcomes"])
    notes = set()
    for body in bodies:
        prompt = PROMPTS["en"][read_kind(body)]
        opening = [{"role": _ROLES[message.role], "content": message.content} for message in prompt.opening]
        assert body["messages"][:-1] == opening
        behind = re.search(r"</[a-z_]+ [0-9a-f]{8}>([^>]*)\Z", body["messages"][-1]["content"])
        assert behind
        notes.add(re.sub(_NARROWED, "NARROWED", behind[1]))
    assert notes == {"", f"\n\n{_UNUSABLE_NOTE}", "\n\nNARROWED"}
