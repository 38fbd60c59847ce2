"""The `local:` judges: a classifier of document-claim support that runs in this process, without a key or a network.

Only this module imports sentence-transformers and torch. `CrossEncoder` loads the model, picks the device and uses the
ONNX backend if that is installed; the texts are formatted here, since ports of such models often fail at that: the form
that the model was trained on, windows that overlap so that nothing is cut off, and the label that means "supported".
`check_golden_pairs` checks that all of this fits the model.
"""

import asyncio
import hashlib
import importlib.util
import re
import tomllib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from importlib.resources import files
from pathlib import Path
from string import ascii_lowercase
from typing import Any, Final, Literal, cast
from urllib.parse import parse_qsl

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from evalhouse.tasks.asking.pairs import Pair, Scored, judge_pairs, locate
from evalhouse.tasks.judge.protocol import (
    LOCAL,
    LOCAL_TASKS,
    FatalJudgeError,
    ModelReply,
    ModelRequest,
    Question,
    RefusedRequest,
    RunCancelled,
    hash_canonical,
    plain_data,
    require_prompt,
)
from evalhouse.warehouse.messages import shorten
from evalhouse.warehouse.steps import REPLY_VERSIONS


@cache
def load_table() -> Mapping[str, Any]:
    """Return `classifiers.toml`: known models, defaults, how configs name the supporting label, and golden pairs."""
    return tomllib.loads(files("evalhouse.tasks.models").joinpath("classifiers.toml").read_text(encoding="utf-8"))


class Classifier(BaseModel):
    """A model and how it is asked. Windows, overlaps and `max_tokens` are counted in its own tokens.

    `form` is `pair`, or a text with {document}, {claim} and maybe {eos}. `support` is the number of the label that
    means "supported", for configs that do not name it, or for any config if `sets_support`. The library chooses
    `device` and `backend` if they are None, and the model `max_tokens`.
    """

    model_config = ConfigDict(frozen=True)

    model: str
    form: str
    window: int = Field(ge=1)
    overlap: int = Field(ge=0)
    threshold: float = Field(gt=0, lt=1)
    batch: int = Field(ge=1)
    support: int | None = Field(default=None, ge=0)
    sets_support: bool = False
    max_tokens: int | None = Field(default=None, ge=1)
    device: str | None = Field(default=None, min_length=1)
    backend: Literal["torch", "onnx"] | None = None

    @field_validator("form")
    @classmethod
    def _find_form(cls, form: str) -> str:
        models = load_table()["models"]
        form = str(models[form]["form"]) if form in models else form
        if form != "pair" and not ("{document}" in form and "{claim}" in form):
            raise ValueError("no document or no claim in it")
        return form


# The settings in a judge's name, and the values that each allows.
_SETTINGS: Final = {
    "threshold": "between 0 and 1",
    "support": "a whole number from 0",
    "window": "a whole number from 1",
    "overlap": "a whole number from 0",
    "max_tokens": "a whole number from 1",
    "batch": "a whole number from 1",
    "form": "pair, the name of a known model for its form, or a text with {document} and {claim}",
    "device": "cpu, cuda, cuda:1, mps, …",
    "backend": "torch or onnx",
}


def parse_classifier(name: str) -> Classifier:
    """Return the classifier that a judge's name means; raises FatalJudgeError that says what is allowed."""
    table = load_table()
    model, _, query = name.partition(":")[2].partition("?")
    if not model.strip():
        raise FatalJudgeError(
            f"no model given in {name!r}; allowed: {', '.join(table['models'])}, a folder or a hub's id"
        )
    row = table["defaults"] | table["models"].get(model, {"id": model})
    settings = dict(parse_qsl(query, keep_blank_values=True))
    if query and not settings:
        raise FatalJudgeError(f"{name!r} has {query!r} after its `?`; settings are written key=value, with & between")
    wrong = next((key for key in settings if key not in _SETTINGS), None)
    if wrong is None:
        try:
            return Classifier(**row | settings, model=row["id"], sets_support="support" in settings)
        except ValidationError as error:
            wrong = str(error.errors()[0]["loc"][0])
    allowed = "; ".join(f"{key} {values}" for key, values in _SETTINGS.items())
    raise FatalJudgeError(f"{name!r} has {wrong}={settings[wrong]!r}; allowed: {allowed}")


LOCAL_VERSION: Final = "1"  # part of every request's key: raise it whenever any verdict may come out differently
_INSTALL = "pip install 'evalhouse[local]'"
_PLACES = re.compile(r"(\{document\}|\{claim\}|\{eos\})")
# A window is decoded and tokenized again, which may split a token at its ends.
_SPARE_TOKENS = 8
_MIN_ROOM = 16
_NO_LIMIT = 1_000_000  # tokenizers without one have a number with thirty digits
_WEIGHTS = ("*.json", "*.txt", "*.model", "*.safetensors", "*.bin", "*.onnx")


class PairModel:
    """A loaded classifier, which scores pairs. Raises FatalJudgeError for a model that cannot be loaded or asked."""

    def __init__(self, classifier: Classifier) -> None:
        if importlib.util.find_spec("sentence_transformers") is None:
            raise FatalJudgeError(f"{LOCAL}: judges need the package sentence-transformers; {_INSTALL}")
        import torch  # noqa: PLC0415  # takes seconds
        from sentence_transformers import CrossEncoder  # noqa: PLC0415
        from transformers import AutoConfig  # noqa: PLC0415
        from transformers.utils import logging  # noqa: PLC0415

        # The backend that the name asks for, else ONNX where its package is installed and no GPU is used.
        has_onnx = bool(importlib.util.find_spec("optimum") and importlib.util.find_spec("optimum.onnxruntime"))
        if classifier.backend == "onnx" and not has_onnx:
            raise FatalJudgeError("backend=onnx needs ONNX's packages; pip install 'sentence-transformers[onnx]'")
        has_gpu = torch.cuda.is_available() or torch.backends.mps.is_available()
        on_cpu = classifier.device == "cpu" or (classifier.device is None and not has_gpu)
        self.backend = classifier.backend or ("onnx" if has_onnx and on_cpu else "torch")
        logging.disable_progress_bar()  # of loading from disk; a download still shows its progress
        folder = Path(classifier.model).expanduser()
        model = str(folder) if folder.is_dir() else classifier.model
        try:
            # Checked before the library loads it, which would give any other model a head of random weights.
            architectures = AutoConfig.from_pretrained(model).architectures or []
            if not any("SequenceClassification" in name for name in architectures):
                raise ValueError(f"it is not a text classifier (architecture {', '.join(architectures) or 'unknown'})")
            encoder: Any = CrossEncoder(model, device=classifier.device, backend=self.backend)
        except Exception as error:  # a library of many makers, and a file of any
            first = next(iter(str(error).splitlines()), "") or type(error).__name__
            raise FatalJudgeError(
                f"cannot load {classifier.model}: {shorten(first, 200)}; give a folder with the model's files, or the "
                "id of one on the hub that can be reached"
            ) from None
        if not getattr(encoder.tokenizer, "is_fast", False):
            raise FatalJudgeError(f"{classifier.model} has no fast tokenizer (tokenizer.json), which cuts the windows")
        encoder.eval()
        self._classifier = classifier
        self._tokenizer: Any = encoder.tokenizer
        self._model: Any = encoder.model
        self._device: Any = encoder.device
        config = self._model.config
        # The number of the label that means "supported": from the name, the config, or the only label.
        n_labels, known_names = int(config.num_labels), load_table()["labels"]["support"]
        named = [
            int(number)
            for number, label in config.id2label.items()
            if "".join(letter for letter in str(label).lower() if letter in ascii_lowercase) in known_names
        ]
        support = classifier.support
        if len(named) == 1 and not classifier.sets_support:
            support = named[0]
        elif support is None and n_labels == 1:
            support = 0
        elif support is None:
            labels = ", ".join(f"{number} {label}" for number, label in config.id2label.items())
            raise FatalJudgeError(
                f"{classifier.model} does not state which of its labels means that a text supports a claim ({labels}); "
                f"set it with {LOCAL}:{classifier.model}?support=NUMBER"
            )
        elif support >= n_labels:
            raise FatalJudgeError(f"{classifier.model} has the labels 0 to {n_labels - 1}, not support={support}")
        self._support = support
        limits = [self._tokenizer.model_max_length, getattr(config, "max_position_embeddings", None)]
        limits = [int(limit) for limit in limits if isinstance(limit, int) and 0 < limit < _NO_LIMIT]
        if classifier.max_tokens is None and not limits:
            raise FatalJudgeError(
                f"{classifier.model} does not state how many tokens it reads; set it with …?max_tokens=NUMBER"
            )
        self._max_tokens = classifier.max_tokens or min(limits)
        self.threshold = classifier.threshold
        self.device = str(self._device)
        # The identity of the weights: the hub's commit, or the hash of a folder's files.
        self.identity = str(getattr(config, "_commit_hash", None) or "unknown")[:12]
        if folder.is_dir():
            digest = hashlib.sha256()
            for path in sorted({path for pattern in _WEIGHTS for path in folder.rglob(pattern)}):
                with path.open("rb") as opened:
                    digest.update(path.name.encode() + hashlib.file_digest(opened, "sha256").digest())
            self.identity = digest.hexdigest()[:12]
        # The settings that may change a score, beside the weights and the texts.
        self.settings: dict[str, object] = {
            "form": classifier.form,
            "support": self._support,
            "window": classifier.window,
            "overlap": classifier.overlap,
            "max_tokens": self._max_tokens,
            "threshold": classifier.threshold,
            "backend": self.backend,
        }
        self.n_tokens = 0
        self.is_closed = False

    def score(self, pairs: Sequence[Pair], *, whole: bool = False) -> list[Scored]:
        """Return the best window of each pair; an empty document supports nothing."""
        windows = [self._split(pair, whole=whole) for pair in pairs]
        texts = [
            Pair(document=pair.document[start:end], claim=pair.claim)
            for pair, places in zip(pairs, windows, strict=True)
            for start, end in places
        ]
        scores = iter(self._run(texts))
        results = []
        for pair, places in zip(pairs, windows, strict=True):
            best = max(
                ((next(scores), start, end) for start, end in places), key=lambda scored: scored[0], default=None
            )
            if best is None:
                results.append(Scored(score=0.0, text="", first=0, last=0))
            else:
                score, start, end = best
                results.append(Scored(score=score, text=pair.document[start:end], **locate(pair.document, start, end)))
        return results

    def fits(self, pair: Pair) -> bool:
        """Return whether the model reads the whole document at once."""
        return self._count(pair.document) <= self._find_room(pair.claim)

    def _split(self, pair: Pair, *, whole: bool) -> list[tuple[int, int]]:
        """Return overlapping windows over a document by their characters, none longer than fits beside the claim."""
        room = self._find_room(pair.claim)
        if room < _MIN_ROOM:
            raise RefusedRequest(
                f"a statement of {self._count(pair.claim)} tokens leaves no room for a text: {self._classifier.model} "
                f"reads {self._max_tokens} in all ({shorten(pair.claim, 60)})"
            )
        size = room if whole else min(room, self._classifier.window)
        step = max(1, size - min(self._classifier.overlap, size // 2))
        document = self._neutralise(pair.document)
        encoded = self._tokenizer(document, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        offsets = [(start, end) for start, end in encoded["offset_mapping"] if end > start]
        windows = []
        for first in range(0, len(offsets), step):
            last = min(first + size, len(offsets))
            windows.append((offsets[first][0], offsets[last - 1][1]))
            if last == len(offsets):
                break
        return windows

    def _find_room(self, claim: str) -> int:
        """Return how many tokens of a document the model reads beside a claim."""
        texts = self._format(Pair(document="", claim=claim))
        used = self._tokenizer(*texts, verbose=False)["input_ids"]
        return self._max_tokens - len(used) - _SPARE_TOKENS

    def _count(self, text: str) -> int:
        return len(self._tokenizer(self._neutralise(text), add_special_tokens=False, verbose=False)["input_ids"])

    def _format(self, pair: Pair) -> tuple[str, ...]:
        """Return the text, or the two texts, that the tokenizer gets for a pair."""
        document, claim = self._neutralise(pair.document), self._neutralise(pair.claim)
        if self._classifier.form == "pair":
            return document, claim
        values = {"{document}": document, "{claim}": claim, "{eos}": self._tokenizer.eos_token or ""}
        return ("".join(values.get(part, part) for part in _PLACES.split(self._classifier.form)),)

    def _neutralise(self, text: str) -> str:
        """Return a text of the same length without the tokenizer's special tokens."""
        for mark in self._tokenizer.all_special_tokens:
            if mark in text:
                text = text.replace(mark, " " * len(mark))
        return text

    def _run(self, pairs: Sequence[Pair]) -> list[float]:
        """Return the probability of "supported" for each pair that fits, in batches of like length."""
        import torch  # noqa: PLC0415  # takes seconds

        texts = [self._format(pair) for pair in pairs]
        scores = [0.0] * len(pairs)
        order = sorted(range(len(pairs)), key=lambda at: sum(map(len, texts[at])))
        for start in range(0, len(order), self._classifier.batch):
            if self.is_closed:
                raise RunCancelled("the run was stopped")
            places = order[start : start + self._classifier.batch]
            columns = [list(column) for column in zip(*(texts[place] for place in places), strict=True)]
            features = self._tokenizer(*columns, padding=True, return_tensors="pt", verbose=False)
            longest = features["input_ids"].shape[1]
            if longest > self._max_tokens:
                raise RefusedRequest(
                    f"a text took {longest} tokens, and {self._classifier.model} reads {self._max_tokens}"
                )
            self.n_tokens += int(features["attention_mask"].sum())
            with torch.inference_mode():
                logits = self._model(**features.to(self._device)).logits.float()
            chances = logits.sigmoid() if logits.shape[1] == 1 else logits.softmax(dim=1)
            for place, chance in zip(places, chances[:, self._support].cpu(), strict=True):
                scores[place] = float(chance)
        return scores


class LocalJudge:
    """Gives verdicts by a classifier's scores, which do not depend on prompt texts.

    Questions are answered one after the other, in one thread: a model uses all cores, or its device, alone.
    """

    endpoint = None
    tasks = LOCAL_TASKS

    def __init__(self, name: str, classifier: Classifier, pair_model: PairModel) -> None:
        self.name = name
        self.model = f"{LOCAL}:{classifier.model}@{pair_model.identity}"
        self._settings = pair_model.settings
        self._pair_model = pair_model
        self.threshold = pair_model.threshold
        self.fits = pair_model.fits
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="local-judge")
        self._turn = asyncio.Lock()

    def prepare(self, question: Question) -> ModelRequest:
        """Return the question's data under the model's identity and settings; `note` is for chat models."""
        prompt = require_prompt(question)
        if prompt.name not in LOCAL_TASKS:
            raise FatalJudgeError(
                f"{self.name} checks statements against texts and cannot answer {prompt.name!r}; name another judge "
                f"for that step, it answers {', '.join(sorted(LOCAL_TASKS))}"
            )
        payload: dict[str, object] = {
            "model": self.model,
            "prompt": prompt.name,
            "settings": self._settings,
            "joint": "together" in str(prompt.reply_schema),
            "data": plain_data(question.data),
        }
        keyed = [LOCAL_VERSION, payload, REPLY_VERSIONS[prompt.name], question.number, question.only]
        return ModelRequest(request_hash=hash_canonical(keyed), payload=payload)

    async def reply(self, request: ModelRequest) -> ModelReply:
        """Return the verdicts, as a chat model would write them, with their scores."""
        payload = request.payload
        async with self._turn:
            n_before = self._pair_model.n_tokens
            data = cast(Mapping[str, Any], payload["data"])
            verdicts = await judge_pairs(str(payload["prompt"]), data, self, joint=bool(payload["joint"]))
            text = orjson.dumps({"threshold": self.threshold, "verdicts": verdicts}).decode()
            n_tokens = self._pair_model.n_tokens - n_before
        return ModelReply(text=text, model=self.model, prompt_tokens=n_tokens, completion_tokens=0)

    async def score(self, pairs: Sequence[Pair], *, whole: bool = False) -> list[Scored]:
        """Return the model's score of each pair."""
        if self._pair_model.is_closed:
            raise RunCancelled("the run was stopped")
        work = partial(self._pair_model.score, pairs, whole=whole)
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def close(self) -> None:
        """Give up the waiting questions; the running one ends with its batch."""
        self._pair_model.is_closed = True
        self._thread.shutdown(wait=False, cancel_futures=True)


def check_golden_pairs(name: str) -> str:
    """Load a classifier and try pairs that any classifier gets right; raises FatalJudgeError with the wrong ones.

    The text of a pair that is `far` is placed after two windows of other text, of at least one token a word.
    """
    classifier = parse_classifier(name)
    model = PairModel(classifier)
    table = load_table()["golden"]
    filler = str(table["filler"])
    before = " ".join([filler] * (2 * classifier.window // len(filler.split()) + 1))
    pairs, expected = [], []
    for golden in table["pairs"]:
        text = f"{before} {golden['text']}" if golden.get("far") else golden["text"]
        pairs += [Pair(document=text, claim=golden["supported"]), Pair(document=text, claim=golden["unsupported"])]
        expected += [True, False]
    scores = [scored.score for scored in model.score(pairs)]
    wrong = [
        f"{score:.2f} for “{pair.claim}”, which is {'' if supported else 'not '}supported"
        for pair, supported, score in zip(pairs, expected, scores, strict=True)
        if (score >= model.threshold) != supported
    ]
    if wrong:
        hint = "the label that means “supported” is probably a different one (?support=NUMBER)"
        if 2 * len(wrong) <= len(pairs):
            hint = "prompt form, windows or threshold probably do not fit the model, or it is a weak one"
        raise FatalJudgeError(
            f"{classifier.model} gets {len(wrong)} of {len(pairs)} golden pairs wrong: {hint}. {'; '.join(wrong[:3])}"
        )
    lowest = min(score for score, supported in zip(scores, expected, strict=True) if supported)
    highest = max(score for score, supported in zip(scores, expected, strict=True) if not supported)
    return (
        f"{model.identity} on {model.device} ({model.backend}); all {len(pairs)} golden pairs come out right, "
        f"supported from {lowest:.2f}, not supported up to {highest:.2f}, threshold {model.threshold:g}"
    )
