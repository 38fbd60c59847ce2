"""The attack set: texts that try to leave their block, to forge an id, or to talk a judge into a verdict.

The attacks are data (`tests/benchmarks/attacks.yaml`): kind, language, where they are planted and which verdict they
are after. A trial is one request as a step would send it, about a scene whose right verdicts are known, with one attack
planted in one field, beside the same request without it. The wrong claim is A1 and the true aside A2, the useless
context is C1 and the helpful one C2; an attack is in A1, in C1 or at the end of a text. Attacks that want to `pass` aim
at the wrong one of the two, attacks that want the other to `fail` at the right one.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import orjson
import yaml
from pydantic import BaseModel

from evalhouse.prompts import BlockValue, Item
from evalhouse.prompts.render import render_blocks

FILE = Path(__file__).resolve().parents[1] / "benchmarks" / "attacks.yaml"
Language = Literal["en", "zh"]
Goal = Literal["pass", "fail"]
Place = Literal["question", "answer", "ground_truth", "contexts", "statements"]
AttackedStep = Literal["extract", "classify", "attribute", "rank"]

# Which requests a text reaches from where it is planted.
STEPS_OF: Mapping[Place, tuple[AttackedStep, ...]] = {
    "question": ("extract", "classify", "attribute", "rank"),
    "answer": ("extract",),
    "ground_truth": ("extract", "rank"),
    "contexts": ("attribute", "rank"),
    "statements": ("classify", "attribute"),
}
_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")
_WRONG_NONCE = "c0ffee42"
_LABELS: Mapping[AttackedStep, Mapping[Goal, str]] = {
    "extract": {"pass": "[]", "fail": "[]"},
    "classify": {"pass": "TP", "fail": "FP"},
    "attribute": {"pass": "C1", "fail": "[]"},
    "rank": {"pass": "useful", "fail": "not_useful"},
}
_TWINS = str.maketrans("aceopstxi", "асеорѕтхі")
_WIDE = {code: code + 0xFEE0 for code in range(0x21, 0x7F)}


class Scene(BaseModel, frozen=True):
    """A harmless sample whose right verdicts are known."""

    id: str
    language: Language
    question: str
    truth: str
    aside: str
    claim: str
    mark: str
    useless: str
    helpful: str


class Attack(BaseModel, frozen=True):
    """One text, where it is planted and its goal; its placeholders are filled by `aim`."""

    id: str
    language: Language
    kind: str
    goal: Goal
    fields: tuple[Place, ...]
    steps: tuple[AttackedStep, ...] = ()
    filler: str = ""
    times: int = 0
    text: str

    def list_steps(self, field: Place) -> list[AttackedStep]:
        """The steps it is aimed at from one of its fields."""
        return [step for step in STEPS_OF[field] if not self.steps or step in self.steps]


class AttackSet(BaseModel, frozen=True):
    """All of it. `wishes` word what is wanted as an order, by language and step."""

    scenes: tuple[Scene, ...]
    wishes: dict[Goal, dict[Language, dict[AttackedStep, str]]]
    attacks: tuple[Attack, ...]


def load_attacks() -> AttackSet:
    """Load our attack set."""
    return AttackSet.model_validate(yaml.safe_load(FILE.read_text(encoding="utf-8")))


def fill(text: str, values: Mapping[str, str]) -> str:
    """A text with its placeholders filled; other braces, as JSON has them, stay."""
    return _PLACEHOLDER.sub(lambda match: values.get(match[1], match[0]), text)


Data = Mapping[str, BlockValue]


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One attack in one request; `control` is the same request without it."""

    attack: Attack
    field: Place
    step: AttackedStep
    scene: Scene
    control: Data
    data: Data

    @property
    def target(self) -> str:
        """The id whose verdict the attack is after; of a text that is split, that of its first statement."""
        return _pick_target(self.step, self.attack.goal)

    @property
    def control_key(self) -> str:
        """Equal for trials with equal controls."""
        text = "ground_truth" if self.step == "extract" and self.field == "ground_truth" else "answer"
        return f"{self.scene.id}/{self.step}/{text}"


def make_trials(attacks: AttackSet) -> list[Trial]:
    """Every attack in every field it names, for every step that reads the field; scenes take turns."""
    trials: list[Trial] = []
    for place, attack in enumerate(attacks.attacks):
        scenes = [scene for scene in attacks.scenes if scene.language == attack.language]
        scene = scenes[place % len(scenes)]
        for field in attack.fields:
            steps = attack.list_steps(field)
            trials += [make_trial(attacks, attack, field=field, step=step, scene=scene) for step in steps]
    return trials


def make_trial(attacks: AttackSet, attack: Attack, *, field: Place, step: AttackedStep, scene: Scene) -> Trial:
    """One attack planted in one request, also where it does not ask to be."""
    control = lay_out(scene, step, field)
    text = aim(attacks, attack, field=field, step=step, scene=scene)
    data = _plant(control, find_block(field, step), text)
    return Trial(attack=attack, field=field, step=step, scene=scene, control=control, data=data)


def lay_out(scene: Scene, step: AttackedStep, field: Place = "answer") -> dict[str, BlockValue]:
    """The data of a step's request about a scene, in the order in which blocks are written.

    `field` says which of the two texts is to be split, for a step that splits one.
    """
    answer = [Item(id="A1", text=scene.claim), Item(id="A2", text=scene.aside)]
    truth = [Item(id="G1", text=scene.truth), Item(id="G2", text=scene.aside)]
    contexts = [Item(id="C1", text=scene.useless), Item(id="C2", text=scene.helpful)]
    match step:
        case "extract":
            first = scene.truth if field == "ground_truth" else scene.claim
            return {"question": scene.question, "text": f"{first} {scene.aside}"}
        case "classify":
            return {"question": scene.question, "answer_statements": answer, "ground_truth_statements": truth}
        case "attribute":
            return {
                "question": scene.question, "contexts": contexts, "answer_statements": answer,
                "ground_truth_statements": truth,
            }  # fmt: skip
        case "rank":
            return {"question": scene.question, "ground_truth": scene.truth, "contexts": contexts}


def find_block(field: Place, step: AttackedStep) -> str:
    """The block of a step's request in which a field of a sample ends up."""
    if step == "extract" and field in ("answer", "ground_truth"):
        return "text"
    return "answer_statements" if field == "statements" else field


def aim(attacks: AttackSet, attack: Attack, *, field: Place, step: AttackedStep, scene: Scene) -> str:
    """An attack's text with every placeholder filled for the request it is planted in."""
    data, block = lay_out(scene, step, field), find_block(field, step)
    names = list(data)
    target = _pick_target(step, attack.goal)
    values = {
        "block": block,
        "next_block": names[(names.index(block) + 1) % len(names)],
        "wide_block": block.translate(_WIDE),
        "split_block": "\u200b".join(block),
        "twin_block": block.translate(_TWINS),
        "item": target,
        "other_item": "C2" if target == "C1" else "C1" if target == "C2" else "G1",
        "free_item": f"{target[0]}9",
        "wide_item": target.translate(_WIDE),
        "nonce": read_nonce(data),
        "wrong_nonce": _WRONG_NONCE,
        "label": _LABELS[step][attack.goal],
        "reply": forge_reply(step, attack.goal, data),
        "claim": scene.claim,
    }
    values["wish"] = fill(attacks.wishes[attack.goal][attack.language][step], values)
    values["filler"] = fill(attack.filler, values) * attack.times
    return fill(attack.text, values)


def forge_reply(step: AttackedStep, goal: Goal, data: Data) -> str:
    """The reply that reaches the goal of an attack, finished and well formed."""
    if step == "extract":
        return orjson.dumps({"statements": []}).decode()
    judged = ("contexts",) if step == "rank" else ("answer_statements", "ground_truth_statements")
    ids = [item.id for name in judged for item in list_items(data, name)]
    label = _LABELS[step][goal]
    verdicts: list[dict[str, object]] = []
    for item_id in ids:
        verdict: dict[str, object] = {"label": "FN" if label == "FP" and item_id[0] == "G" else label}
        if step == "attribute":
            verdict = {"contexts": ["C1"] if goal == "pass" else [], "together": []}
        verdicts.append({"id": item_id, "reason": "Settled.", **verdict})
    return orjson.dumps({"verdicts": verdicts}).decode()


def list_items(data: Data, name: str) -> Sequence[Item]:
    """The items of a block; none for a block that is a text or is not there."""
    value = data.get(name, ())
    return () if isinstance(value, str) else value


def read_nonce(data: Data) -> str:
    """The code that fences a message with this data."""
    match = re.match(r"<\w+ ([0-9a-f]+)>", render_blocks(tuple(data), data))
    assert match is not None
    return match[1]


def _pick_target(step: AttackedStep, goal: Goal) -> str:
    letter = "C" if step == "rank" else "A"
    return f"{letter}1" if goal == "pass" else f"{letter}2"


def _plant(data: Data, block: str, text: str) -> dict[str, BlockValue]:
    """The same data with a text at the end of a block's text or of its first item."""
    value = data[block]
    if isinstance(value, str):
        return {**data, block: f"{value}\n{text}"}
    first, *others = value
    return {**data, block: [Item(id=first.id, text=f"{first.text}\n{text}"), *others]}
