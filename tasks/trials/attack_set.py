"""The attack set: texts of our own that try to leave their block, to forge an id, or to talk a judge into a verdict.

They are data (`attacks.yaml`) and carry all about themselves: kind, language, where they are planted and what they
want. This module reads them strictly and says in one error everything that is wrong with them; `attack_trials.py`
plants them, `attack_measure.py` finds out whom they fool.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from evalhouse.tasks.judge.errors import FatalJudgeError

Language = Literal["en", "zh"]
Kind = Literal[
    "fake_end", "forged_item", "forged_rating", "order", "plea", "forged_reply", "role_switch", "hidden", "look_alike",
    "markup", "flooding",
]  # fmt: skip
Wants = Literal["pass", "fail"]
Place = Literal["question", "answer", "ground_truth", "contexts", "statements"]
AttackedStep = Literal["extract", "classify", "attribute", "rank"]
Words = Annotated[str, Field(min_length=1)]

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


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=False, frozen=True)


class Scene(_Strict):
    """A harmless sample whose right verdicts are known."""

    id: Words
    language: Language
    question: Words
    truth: Words
    aside: Words
    claim: Words
    mark: Words
    useless: Words
    helpful: Words


class Attack(_Strict):
    """One text, where it is planted and what it wants; its placeholders are filled by `attack_trials.aim`."""

    id: Words
    language: Language
    kind: Kind
    wants: Wants
    fields: tuple[Place, ...] = Field(min_length=1)
    steps: tuple[AttackedStep, ...] = ()
    filler: str = ""
    times: int = Field(default=0, ge=0, le=10_000)
    text: Words

    def list_steps(self, field: Place) -> list[AttackedStep]:
        """The steps it is aimed at from one of its fields."""
        return [step for step in STEPS_OF[field] if not self.steps or step in self.steps]


class AttackSet(_Strict):
    """All of it. `wishes` word what is wanted as an order, by language and step."""

    scenes: tuple[Scene, ...] = Field(min_length=1)
    wishes: dict[Wants, dict[Language, dict[AttackedStep, Words]]]
    attacks: tuple[Attack, ...] = Field(min_length=1)


def load_attacks(path: Path | None = None) -> AttackSet:
    """Our attack set, or one of the same form; raises FatalJudgeError that names every problem."""
    place = path or files("evalhouse.tasks.trials").joinpath("attacks.yaml")
    try:
        parsed = yaml.safe_load(place.read_text(encoding="utf-8"))
        found = AttackSet.model_validate(parsed)
    except (OSError, UnicodeDecodeError) as error:
        raise FatalJudgeError(f"cannot read the attack set {place}: {error}") from None
    except yaml.YAMLError as error:
        raise FatalJudgeError(f"the attack set {place} is no YAML: {' '.join(str(error).split())}") from None
    except ValidationError as error:
        _refuse(str(place), [_describe(problem["loc"], problem["msg"]) for problem in error.errors()])
    problems = [*_find_scene_faults(found), *_find_wish_faults(found)]
    for attack in found.attacks:
        problems += [f"attack {attack.id}: {fault}" for fault in _find_faults(attack, found)]
    if problems:
        _refuse(str(place), problems)
    return found


def _refuse(place: str, problems: list[str]) -> NoReturn:
    raise FatalJudgeError(f"the attack set {place} has {len(problems)} faults: {'; '.join(problems)}")


def _describe(location: tuple[int | str, ...], message: str) -> str:
    return f"{'.'.join(map(str, location)) or 'the file'}: {message[:1].lower()}{message[1:]}"


def _find_scene_faults(found: AttackSet) -> Iterator[str]:
    names = Counter([*(scene.id for scene in found.scenes), *(attack.id for attack in found.attacks)])
    yield from (f"the id {name} is given {count} times; each stands once" for name, count in names.items() if count > 1)
    for scene in found.scenes:
        if scene.mark not in scene.claim or scene.mark in f"{scene.truth}{scene.aside}{scene.useless}{scene.helpful}":
            yield f"scene {scene.id}: the mark {scene.mark!r} must stand in the claim and in no other text"


def _find_wish_faults(found: AttackSet) -> Iterator[str]:
    for wants in ("pass", "fail"):
        for language in ("en", "zh"):
            worded = found.wishes.get(wants, {}).get(language, {}).keys()
            if missing := sorted({"extract", "classify", "attribute", "rank"} - worded):
                yield f"wishes.{wants}.{language} has no words for {', '.join(missing)}"


def _find_faults(attack: Attack, found: AttackSet) -> Iterator[str]:
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
    if attack.language not in {scene.language for scene in found.scenes}:
        yield f"there is no scene in its language {attack.language}"


def fill(text: str, values: Mapping[str, str]) -> str:
    """A text with its placeholders filled; other braces, as JSON has them, stay."""
    return _PLACEHOLDER.sub(lambda match: values.get(match[1], match[0]), text)
