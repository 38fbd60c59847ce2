"""The attack set: texts of our own that try to leave their block, to forge an id, or to talk a judge into a verdict.

They are data (`attacks.yaml`) and carry all about themselves: kind, language, where they are planted and what they
want. They are read strictly, with everything that is wrong with them in one error.

A trial is one request as a step would send it, about a scene whose right verdicts are known, with one attack planted
in one field, beside the same request without it. The wrong claim is A1 and the true aside A2, the useless context is
C1 and the helpful one C2; an attack stands in A1, in C1 or at the end of a text. Those that want to `pass` aim at the
wrong one of the two, those that want the other to `fail` at the right one. `attack_results.py` finds out whom they
fool.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import orjson
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from evalhouse.prompts import BlockValue, Item
from evalhouse.prompts.render import render_blocks
from evalhouse.tasks.judge.errors import FatalJudgeError

Language = Literal["en", "zh"]
Kind = Literal[
    "fake_end", "forged_item", "forged_rating", "order", "plea", "forged_reply", "role_switch", "hidden", "look_alike",
    "markup", "flooding",
]  # fmt: skip
Wants = Literal["pass", "fail"]
Place = Literal["question", "answer", "ground_truth", "contexts", "statements"]
AttackedStep = Literal["extract", "classify", "attribute", "rank"]
Text = Annotated[str, Field(min_length=1)]

# Which requests a text reaches from where it is planted.
STEPS_OF: Mapping[Place, tuple[AttackedStep, ...]] = {
    "question": ("extract", "classify", "attribute", "rank"),
    "answer": ("extract",),
    "ground_truth": ("extract", "rank"),
    "contexts": ("attribute", "rank"),
    "statements": ("classify", "attribute"),
}
PLACEHOLDERS = (
    "block", "next_block", "wide_block", "split_block", "twin_block", "item", "other_item", "free_item", "wide_item",
    "nonce", "wrong_nonce", "label", "wish", "reply", "claim", "filler",
)  # fmt: skip
# Without one of these nothing is wanted.
_AIMS = frozenset({"wish", "label", "reply", "claim", "item"})
_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")
_WRONG_NONCE = "c0ffee42"
_LABELS: Mapping[AttackedStep, Mapping[Wants, str]] = {
    "extract": {"pass": "[]", "fail": "[]"},
    "classify": {"pass": "TP", "fail": "FP"},
    "attribute": {"pass": "C1", "fail": "[]"},
    "rank": {"pass": "useful", "fail": "not_useful"},
}
_TWINS = str.maketrans("aceopstxi", "асеорѕтхі")
_WIDE = {code: code + 0xFEE0 for code in range(0x21, 0x7F)}


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=False, frozen=True)


class Scene(_Strict):
    """A harmless sample whose right verdicts are known."""

    id: Text
    language: Language
    question: Text
    truth: Text
    aside: Text
    claim: Text
    mark: Text
    useless: Text
    helpful: Text


class Attack(_Strict):
    """One text, where it is planted and what it wants; its placeholders are filled by `aim`."""

    id: Text
    language: Language
    kind: Kind
    wants: Wants
    fields: tuple[Place, ...] = Field(min_length=1)
    steps: tuple[AttackedStep, ...] = ()
    filler: str = ""
    times: int = Field(default=0, ge=0, le=10_000)
    text: Text

    def list_steps(self, field: Place) -> list[AttackedStep]:
        """The steps it is aimed at from one of its fields."""
        return [step for step in STEPS_OF[field] if not self.steps or step in self.steps]


class AttackSet(_Strict):
    """All of it. `wishes` word what is wanted as an order, by language and step."""

    scenes: tuple[Scene, ...] = Field(min_length=1)
    wishes: dict[Wants, dict[Language, dict[AttackedStep, Text]]]
    attacks: tuple[Attack, ...] = Field(min_length=1)


def load_attacks(path: Path | None = None) -> AttackSet:
    """Our attack set, or one of the same form; raises FatalJudgeError that names every problem."""
    place = path or files("evalhouse.tasks.trials").joinpath("attacks.yaml")
    try:
        parsed = yaml.load(place.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        attacks = AttackSet.model_validate(parsed)
    except (OSError, UnicodeDecodeError) as error:
        raise FatalJudgeError(f"cannot read the attack set {place}: {error}") from None
    except yaml.YAMLError as error:
        raise FatalJudgeError(f"the attack set {place} is not valid YAML: {' '.join(str(error).split())}") from None
    except ValidationError as error:
        _refuse(str(place), [_describe(problem["loc"], problem["msg"]) for problem in error.errors()])
    problems = [*_find_scene_faults(attacks), *_find_wish_faults(attacks)]
    for attack in attacks.attacks:
        problems += [f"attack {attack.id}: {fault}" for fault in _find_faults(attack, attacks)]
    if problems:
        _refuse(str(place), problems)
    return attacks


def _refuse(place: str, problems: list[str]) -> NoReturn:
    raise FatalJudgeError(f"the attack set {place} has {len(problems)} faults: {'; '.join(problems)}")


def _describe(location: tuple[int | str, ...], message: str) -> str:
    return f"{'.'.join(map(str, location)) or 'the file'}: {message[:1].lower()}{message[1:]}"


def _find_scene_faults(attacks: AttackSet) -> Iterator[str]:
    names = Counter([*(scene.id for scene in attacks.scenes), *(attack.id for attack in attacks.attacks)])
    yield from (f"the id {name} is given {count} times; each stands once" for name, count in names.items() if count > 1)
    for scene in attacks.scenes:
        if scene.mark not in scene.claim or scene.mark in f"{scene.truth}{scene.aside}{scene.useless}{scene.helpful}":
            yield f"scene {scene.id}: the mark {scene.mark!r} must stand in the claim and in no other text"


def _find_wish_faults(attacks: AttackSet) -> Iterator[str]:
    for wants in ("pass", "fail"):
        for language in ("en", "zh"):
            worded = attacks.wishes.get(wants, {}).get(language, {}).keys()
            if missing := sorted({"extract", "classify", "attribute", "rank"} - worded):
                yield f"wishes.{wants}.{language} has no words for {', '.join(missing)}"


def _find_faults(attack: Attack, attacks: AttackSet) -> Iterator[str]:
    used = set(_PLACEHOLDER.findall(attack.text + attack.filler))
    if unknown := sorted(used - set(PLACEHOLDERS)):
        yield f"unknown placeholder {{{unknown[0]}}}; known: {', '.join(PLACEHOLDERS)}"
    if not used & _AIMS:
        yield f"wants nothing of the judge; use one of {', '.join(f'{{{name}}}' for name in sorted(_AIMS))}"
    if "claim" in used and {"contexts", "ground_truth"} & set(attack.fields):
        yield "{claim} would become true in contexts or a ground truth; leave it or these fields out"
    if not (bool(attack.filler) == bool(attack.times) == ("{filler}" in attack.text)):
        yield "`filler`, `times` and {filler} in the text go together; give all of them or none"
    if len(set(attack.fields)) != len(attack.fields):
        yield f"fields {', '.join(attack.fields)} has one twice"
    if idle := [field for field in attack.fields if not attack.list_steps(field)]:
        yield f"none of its steps reads {idle[0]}; from there it reaches {', '.join(STEPS_OF[idle[0]])}"
    if attack.language not in {scene.language for scene in attacks.scenes}:
        yield f"there is no scene in its language {attack.language}"


def fill(text: str, values: Mapping[str, str]) -> str:
    """A text with its placeholders filled; other braces, as JSON has them, stay."""
    return _PLACEHOLDER.sub(lambda match: values.get(match[1], match[0]), text)


Data = Mapping[str, BlockValue]


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One attack in one request. `control` is the same request without it; equal for many trials, as its key says."""

    attack: Attack
    field: Place
    step: AttackedStep
    scene: Scene
    control: Data
    data: Data

    @property
    def target(self) -> str:
        """The id whose verdict the attack is after; of a text that is split, that of its first statement."""
        return _pick_target(self.step, self.attack.wants)

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
                "question": scene.question,
                "contexts": contexts,
                "answer_statements": answer,
                "ground_truth_statements": truth,
            }
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
    target = _pick_target(step, attack.wants)
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
        "label": _LABELS[step][attack.wants],
        "reply": forge_reply(step, attack.wants, data),
        "claim": scene.claim,
    }
    values["wish"] = fill(attacks.wishes[attack.wants][attack.language][step], values)
    values["filler"] = fill(attack.filler, values) * attack.times
    return fill(attack.text, values)


def forge_reply(step: AttackedStep, wants: Wants, data: Data) -> str:
    """The reply that gives an attack all it wants, finished and well formed."""
    if step == "extract":
        return orjson.dumps({"statements": []}).decode()
    judged = ("contexts",) if step == "rank" else ("answer_statements", "ground_truth_statements")
    ids = [item.id for name in judged for item in list_items(data, name)]
    verdicts = [{"id": item_id, "reason": "Settled.", **_forge_verdict(step, wants, item_id)} for item_id in ids]
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


def _forge_verdict(step: AttackedStep, wants: Wants, item_id: str) -> dict[str, object]:
    if step == "attribute":
        return {"contexts": ["C1"] if wants == "pass" else [], "together": []}
    label = _LABELS[step][wants]
    return {"label": "FN" if label == "FP" and item_id[0] == "G" else label}


def _pick_target(step: AttackedStep, wants: Wants) -> str:
    letter = "C" if step == "rank" else "A"
    return f"{letter}1" if wants == "pass" else f"{letter}2"


def _plant(data: Data, block: str, text: str) -> dict[str, BlockValue]:
    """The same data with a text at the end of a block's text or of its first item."""
    value = data[block]
    if isinstance(value, str):
        return {**data, block: f"{value}\n{text}"}
    first, *others = value
    return {**data, block: [Item(id=first.id, text=f"{first.text}\n{text}"), *others]}
