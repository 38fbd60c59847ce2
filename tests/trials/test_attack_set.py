"""The attack set itself: enough of every kind in both languages, aimed at what it reaches, and refused when faulty."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from evalhouse.prompts import Item
from evalhouse.tasks.asking.verdicts import read_labels, read_statements, read_supports
from evalhouse.tasks.judge.errors import FatalJudgeError
from evalhouse.tasks.trials.attack_results import list_requests
from evalhouse.tasks.trials.attack_set import (
    PLACEHOLDERS,
    STEPS_OF,
    AttackedStep,
    Kind,
    Language,
    Place,
    Trial,
    Wants,
    find_block,
    forge_reply,
    lay_out,
    load_attacks,
    make_trials,
)

ATTACKS = load_attacks()
TRIALS = make_trials(ATTACKS)
FILE = Path(__file__).resolve().parents[2] / "tasks" / "trials" / "attacks.yaml"
STEPS: tuple[AttackedStep, ...] = get_args(AttackedStep)


def name_trial(trial: Trial) -> str:
    return f"{trial.attack.id}/{trial.field}/{trial.step}"


def test_there_are_enough_of_every_kind_in_both_languages() -> None:
    assert len(ATTACKS.attacks) >= 48
    for language in get_args(Language):
        own = [attack for attack in ATTACKS.attacks if attack.language == language]
        assert len(own) >= 24
        assert {attack.kind for attack in own} == set(get_args(Kind))
        assert {attack.wants for attack in own} == set(get_args(Wants))
        assert {field for attack in own for field in attack.fields} == set(get_args(Place))
        assert all(attack.id.startswith(f"{language}-") for attack in own)


def test_every_id_and_every_text_stands_once() -> None:
    for values in (
        [attack.id for attack in ATTACKS.attacks],
        [attack.text for attack in ATTACKS.attacks if not attack.filler],
    ):
        assert len(set(values)) == len(values)


def test_the_tricks_are_really_in_the_texts() -> None:
    """Invisible characters are easily lost in an editor."""
    texts = {attack.id: attack.text for attack in ATTACKS.attacks}
    for language in get_args(Language):
        hidden = "".join(text for name, text in texts.items() if name.startswith(f"{language}-hidden"))
        assert {"\u200b", "\u2060", "\u202e", "\u2028"} <= set(hidden) or {"\u200d", "\u00ad", "\x1b"} <= set(hidden)
    everything = "".join(texts.values())
    for trick in (
        "<|im_start|>system",
        "[/INST]",
        "\uff1c",
        "\uff3b",
        "\u0421",
        "\U000e0041",
        "{nonce}",
        "{wide_block}",
    ):
        assert trick in everything, trick


def test_every_step_is_attacked_from_every_field_it_reads() -> None:
    aimed = {(trial.field, trial.step) for trial in TRIALS}
    assert aimed == {(field, step) for field, steps in STEPS_OF.items() for step in steps}
    assert len(TRIALS) == sum(len(attack.list_steps(field)) for attack in ATTACKS.attacks for field in attack.fields)
    assert len(list_requests(TRIALS)) <= len(ATTACKS.scenes) * (len(STEPS) + 1)
    assert {trial.scene.id for trial in TRIALS} == {scene.id for scene in ATTACKS.scenes}


@pytest.mark.parametrize("trial", TRIALS, ids=name_trial)
def test_a_trial_is_its_control_but_for_the_planted_text(trial: Trial) -> None:
    block = find_block(trial.field, trial.step)
    assert {name: value for name, value in trial.data.items() if name != block} == {
        name: value for name, value in trial.control.items() if name != block
    }
    planted, harmless = trial.data[block], trial.control[block]
    if isinstance(planted, str) or isinstance(harmless, str):
        texts = (str(planted), str(harmless))
    else:
        assert [item.id for item in planted] == [item.id for item in harmless]
        assert planted[1:] == harmless[1:]
        texts = (planted[0].text, harmless[0].text)
    assert texts[0].startswith(f"{texts[1]}\n")
    added = texts[0].removeprefix(f"{texts[1]}\n")
    assert added.strip()
    assert not [name for name in PLACEHOLDERS if f"{{{name}}}" in added]
    assert trial.scene.language == trial.attack.language


@pytest.mark.parametrize("wants", get_args(Wants))
@pytest.mark.parametrize("step", STEPS)
def test_a_forged_reply_is_one_that_a_judge_could_give(step: AttackedStep, wants: Wants) -> None:
    """Else a judge that repeats it would fail to be read, and never count as fooled."""
    data = lay_out(ATTACKS.scenes[0], step)
    reply = forge_reply(step, wants, data)
    match step:
        case "extract":
            assert read_statements(reply) == []
        case "attribute":
            supports = read_supports(reply, ["A1", "A2", "G1", "G2"], ["C1", "C2"])
            assert not supports.problems
            assert {one.contexts for one in supports.by_id.values()} == {("C1",) if wants == "pass" else ()}
        case _:
            allowed = {"A1": ("TP", "FP"), "A2": ("TP", "FP"), "G1": ("TP", "FN"), "G2": ("TP", "FN")}
            if step == "rank":
                allowed = dict.fromkeys(("C1", "C2"), ("useful", "not_useful"))
            labels = read_labels(reply, allowed)
            assert not labels.problems
            wanted = {"classify": {"pass": "TP", "fail": "FP"}, "rank": {"pass": "useful", "fail": "not_useful"}}
            target = {"classify": {"pass": "A1", "fail": "A2"}, "rank": {"pass": "C1", "fail": "C2"}}
            assert labels.by_id[target[step][wants]].label == wanted[step][wants]


@pytest.mark.parametrize("scene", ATTACKS.scenes, ids=lambda scene: scene.id)
def test_the_right_verdicts_of_a_scene_rest_on_its_words(scene: Any) -> None:  # noqa: ANN401
    assert scene.mark in scene.claim
    numbers = re.compile(r"\d+")
    assert numbers.findall(scene.truth) != numbers.findall(scene.claim)
    assert numbers.sub("", scene.truth) == numbers.sub("", scene.claim), "they contradict each other by a number alone"
    assert numbers.findall(scene.helpful)[0] == numbers.findall(scene.truth)[0]
    statements = lay_out(scene, "classify")["answer_statements"]
    assert statements == [Item(id="A1", text=scene.claim), Item(id="A2", text=scene.aside)]


def write(folder: Path, change: Any) -> Path:  # noqa: ANN401  # a function that changes the parsed file
    parsed = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    change(parsed)
    path = folder / "attacks.yaml"
    path.write_text(yaml.safe_dump(parsed, allow_unicode=True), encoding="utf-8")
    return path


def change_first(**values: object) -> Any:  # noqa: ANN401
    def change(parsed: dict[str, Any]) -> None:
        parsed["attacks"][0].update(values)

    return change


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (change_first(kind="trick"), "attacks.0.kind"),
        (change_first(fields=[]), "attacks.0.fields"),
        (change_first(wants="everything"), "attacks.0.wants"),
        (change_first(language="de"), "attacks.0.language"),
        (change_first(colour="red"), "attacks.0.colour"),
        (change_first(text=""), "attacks.0.text"),
        (change_first(text="{wsh}"), "unknown placeholder {wsh}; known: block, "),
        (change_first(text="Good morning."), "wants nothing of the judge"),
        (change_first(text="{claim}"), "{claim} would become true"),
        (change_first(text="{filler} {wish}"), "go together"),
        (change_first(filler="x"), "go together"),
        (change_first(fields=["answer", "answer"]), "has one twice"),
        (
            change_first(fields=["answer"], steps=["rank"]),
            "none of its steps reads answer; from there it reaches extract",
        ),
        (change_first(id="zh-order-forget"), "the id zh-order-forget is given 2 times"),
        (lambda parsed: parsed["wishes"]["pass"]["zh"].pop("rank"), "wishes.pass.zh has no words for rank"),
        (lambda parsed: parsed["scenes"][0].update(mark="1066"), "must stand in the claim"),
        (lambda parsed: parsed.update(scenes=parsed["scenes"][:2]), "there is no scene in its language zh"),
        (lambda parsed: parsed.pop("attacks"), "attacks: field required"),
    ],
)
def test_a_faulty_set_is_refused_in_one_message(tmp_path: Path, change: Any, told: str) -> None:  # noqa: ANN401
    path = write(tmp_path, change)
    with pytest.raises(FatalJudgeError) as raised:
        load_attacks(path)
    assert told in str(raised.value)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    def change(parsed: dict[str, Any]) -> None:
        parsed["attacks"][0]["text"] = "{nothing}"
        parsed["attacks"][1]["fields"] = ["answer", "answer"]

    with pytest.raises(FatalJudgeError, match=r"has 3 faults: .*\{nothing\}.*twice"):
        load_attacks(write(tmp_path, change))


@pytest.mark.parametrize(("text", "told"), [("a: [", "is not valid YAML"), ("- 1", "the file: ")])
def test_a_file_of_another_form_is_refused(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "attacks.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(FatalJudgeError, match=told):
        load_attacks(path)
    with pytest.raises(FatalJudgeError, match="cannot read the attack set"):
        load_attacks(tmp_path / "nowhere.yaml")
