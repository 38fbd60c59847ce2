"""The `local:` judges: a classifier of document-claim support that runs in this process, without a key or a network.

The one place that knows sentence-transformers and torch. Its `CrossEncoder` loads the model, picks the device and
brings the ONNX backend where that is installed; texts are laid out here, since ports of such models fail at that:
the form the model was trained on, windows that overlap so that nothing is cut off, and the label that means
"supported". `check_golden_pairs` finds out whether all of this fits the model.
"""

import asyncio
import hashlib
import importlib.util
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from string import ascii_lowercase
from typing import Any, Final, Literal

import orjson

from evalhouse.tasks.asking.pairs import Pair, Scored, judge_pairs, locate
from evalhouse.tasks.judge.errors import FatalJudgeError, RefusedRequest, RunCancelled
from evalhouse.tasks.judge.names import LOCAL
from evalhouse.tasks.judge.protocol import (
    ModelReply,
    ModelRequest,
    Question,
    hash_canonical,
    plain_data,
    require_prompt,
)
from evalhouse.tasks.models.classifiers import (
    Classifier,
    GoldenPair,
    list_golden_pairs,
    list_support_labels,
    parse_classifier,
    read_filler,
)
from evalhouse.warehouse.messages import shorten
from evalhouse.warehouse.steps import REPLY_VERSIONS

LOCAL_VERSION: Final = "1"  # part of every request's key: raise it whenever any verdict may come out differently
LOCAL_TASKS: Final = frozenset(("classify", "attribute", "rank"))
_INSTALL = "pip install 'evalhouse[local]'"
_PLACES = re.compile(r"(\{document\}|\{claim\}|\{eos\})")
# A window is written out and read again: at its ends a token may come apart.
_SPARE_TOKENS = 8
_LEAST_ROOM = 16
_NO_LIMIT = 1_000_000  # tokenizers without one say a number with thirty digits
_WEIGHTS = ("*.json", "*.txt", "*.model", "*.safetensors", "*.bin", "*.onnx")


@dataclass(frozen=True, kw_only=True)
class _Window:
    """A stretch of a document, by its characters."""

    start: int
    end: int


class PairModel:
    """A classifier that is loaded: scores of pairs. Raises FatalJudgeError for what cannot be loaded or asked."""

    def __init__(self, classifier: Classifier) -> None:
        _require_library()
        encoder = _load(classifier)
        self._classifier = classifier
        self._tokenizer: Any = encoder.tokenizer
        self._model: Any = encoder.model
        self._device: Any = encoder.device
        self._support = _find_support(classifier, self._model.config)
        self._max_tokens = _find_max_tokens(classifier, self._tokenizer, self._model.config)
        self.threshold = classifier.threshold
        self.backend = _choose_backend(classifier)
        self.device = str(self._device)
        self.identity = _identify(classifier, self._model.config)
        self.n_tokens = 0
        self.is_closed = False

    @property
    def settings(self) -> dict[str, object]:
        """What may change a score beside the weights and the texts."""
        chosen = self._classifier
        return {
            "form": chosen.form,
            "support": self._support,
            "window": chosen.window,
            "overlap": chosen.overlap,
            "max_tokens": self._max_tokens,
            "threshold": chosen.threshold,
            "backend": self.backend,
        }

    def score(self, pairs: Sequence[Pair], *, whole: bool = False) -> list[Scored]:
        """The best window of each pair; an empty document supports nothing."""
        windows = [self._split(pair, whole=whole) for pair in pairs]
        texts = [
            Pair(document=pair.document[window.start : window.end], claim=pair.claim)
            for pair, own in zip(pairs, windows, strict=True)
            for window in own
        ]
        scores = iter(self._run(texts))
        return [_pick_best(pair, own, [next(scores) for _ in own]) for pair, own in zip(pairs, windows, strict=True)]

    def fits(self, pair: Pair) -> bool:
        """Whether the model reads the whole document at once."""
        return self._count(pair.document) <= self._find_room(pair.claim)

    def _split(self, pair: Pair, *, whole: bool) -> list[_Window]:
        """Overlapping windows over a document, none longer than the model can read beside the claim."""
        room = self._find_room(pair.claim)
        if room < _LEAST_ROOM:
            raise RefusedRequest(
                f"a statement of {self._count(pair.claim)} tokens leaves no room for a text: {self._classifier.model} "
                f"reads {self._max_tokens} in all ({shorten(pair.claim, 60)})"
            )
        size = room if whole else min(room, self._classifier.window)
        document = self._neutralise(pair.document)
        encoded = self._tokenizer(document, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        offsets = [(start, end) for start, end in encoded["offset_mapping"] if end > start]
        step = max(1, size - min(self._classifier.overlap, size // 2))
        return [
            _Window(start=offsets[first][0], end=offsets[last - 1][1])
            for first, last in _slide(len(offsets), size, step)
        ]

    def _find_room(self, claim: str) -> int:
        """How many tokens of a document the model reads beside a claim."""
        laid_out = self._lay_out(Pair(document="", claim=claim))
        used = self._tokenizer(*laid_out, verbose=False)["input_ids"]
        return self._max_tokens - len(used) - _SPARE_TOKENS

    def _count(self, text: str) -> int:
        return len(self._tokenizer(self._neutralise(text), add_special_tokens=False, verbose=False)["input_ids"])

    def _lay_out(self, pair: Pair) -> tuple[str, ...]:
        """The text, or the two texts, that the tokenizer is given for a pair."""
        document, claim = self._neutralise(pair.document), self._neutralise(pair.claim)
        if self._classifier.form == "pair":
            return document, claim
        values = {"{document}": document, "{claim}": claim, "{eos}": self._tokenizer.eos_token or ""}
        return ("".join(values.get(part, part) for part in _PLACES.split(self._classifier.form)),)

    def _neutralise(self, text: str) -> str:
        """A text in which no word of its own is one of the tokenizer's marks; its length stays as it is."""
        for mark in self._tokenizer.all_special_tokens:
            if mark in text:
                text = text.replace(mark, " " * len(mark))
        return text

    def _run(self, pairs: Sequence[Pair]) -> list[float]:
        """The probability of "supported" for each pair that fits, in batches of like length."""
        laid_out = [self._lay_out(pair) for pair in pairs]
        scores = [0.0] * len(pairs)
        order = sorted(range(len(pairs)), key=lambda at: sum(map(len, laid_out[at])))
        for start in range(0, len(order), self._classifier.batch):
            if self.is_closed:
                raise RunCancelled("the run was stopped")
            places = order[start : start + self._classifier.batch]
            for place, score in zip(places, self._run_batch([laid_out[place] for place in places]), strict=True):
                scores[place] = score
        return scores

    def _run_batch(self, laid_out: Sequence[tuple[str, ...]]) -> list[float]:
        import torch  # noqa: PLC0415  # takes seconds

        columns = [list(column) for column in zip(*laid_out, strict=True)]
        features = self._tokenizer(*columns, padding=True, return_tensors="pt", verbose=False)
        longest = features["input_ids"].shape[1]
        if longest > self._max_tokens:
            raise RefusedRequest(f"a text took {longest} tokens, and {self._classifier.model} reads {self._max_tokens}")
        self.n_tokens += int(features["attention_mask"].sum())
        with torch.inference_mode():
            logits = self._model(**features.to(self._device)).logits.float()
        chances = logits.sigmoid() if logits.shape[1] == 1 else logits.softmax(dim=1)
        return [float(chance) for chance in chances[:, self._support].cpu()]


def _slide(n_tokens: int, size: int, step: int) -> Iterator[tuple[int, int]]:
    """First and last token (not included) of each window; none where there is no token."""
    for first in range(0, n_tokens, step):
        yield first, min(first + size, n_tokens)
        if first + size >= n_tokens:
            return


def _pick_best(pair: Pair, windows: Sequence[_Window], scores: Sequence[float]) -> Scored:
    if not windows:
        return Scored(score=0.0, text="", first=0, last=0)
    place = max(range(len(scores)), key=scores.__getitem__)
    start, end = windows[place].start, windows[place].end
    return Scored(score=scores[place], text=pair.document[start:end], **locate(pair.document, start, end))


def _require_library() -> None:
    if importlib.util.find_spec("sentence_transformers") is None:
        raise FatalJudgeError(f"{LOCAL}: judges need the package sentence-transformers; {_INSTALL}")


def _choose_backend(classifier: Classifier) -> Literal["torch", "onnx"]:
    """As the name says, else ONNX where its package is there and no GPU is."""
    import torch  # noqa: PLC0415  # takes seconds

    has_package = bool(importlib.util.find_spec("optimum") and importlib.util.find_spec("optimum.onnxruntime"))
    if classifier.backend == "onnx" and not has_package:
        raise FatalJudgeError("backend=onnx needs ONNX's packages; pip install 'sentence-transformers[onnx]'")
    on_cpu = (classifier.device or "cpu") == "cpu" and not (classifier.device is None and _has_gpu(torch))
    chosen = classifier.backend or ("onnx" if has_package and on_cpu else "torch")
    return "onnx" if chosen == "onnx" else "torch"


def _has_gpu(torch: Any) -> bool:  # noqa: ANN401  # the module
    return bool(torch.cuda.is_available() or torch.backends.mps.is_available())


def _load(classifier: Classifier) -> Any:  # noqa: ANN401  # a CrossEncoder, whose package need not be there
    from sentence_transformers import CrossEncoder  # noqa: PLC0415  # takes seconds
    from transformers import AutoConfig  # noqa: PLC0415
    from transformers.utils import logging  # noqa: PLC0415

    logging.disable_progress_bar()  # of loading from disk; a download still shows its own
    folder = Path(classifier.model).expanduser()
    model = str(folder) if folder.is_dir() else classifier.model
    try:
        # Read before the library loads it, which would give any other model a head of random weights.
        architectures = AutoConfig.from_pretrained(model).architectures or []
        if not any("SequenceClassification" in name for name in architectures):
            raise ValueError(f"it is no classifier of texts but {', '.join(architectures) or 'of no known kind'}")
        encoder = CrossEncoder(model, device=classifier.device, backend=_choose_backend(classifier))
    except Exception as error:  # a library of many makers, and a file of any
        first = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise FatalJudgeError(
            f"cannot load {classifier.model}: {shorten(first, 200)}; give a folder with the model's files, or the id "
            "of one on the hub that can be reached"
        ) from None
    if not getattr(encoder.tokenizer, "is_fast", False):
        raise FatalJudgeError(f"{classifier.model} has no fast tokenizer (tokenizer.json), which windows are cut with")
    encoder.eval()
    return encoder


def _find_support(classifier: Classifier, config: Any) -> int:  # noqa: ANN401  # a config of transformers
    """The number of the label that means "supported": as said, as the config names it, as the table knows it."""
    n_labels = int(config.num_labels)
    named = [int(number) for number, label in config.id2label.items() if _is_support(str(label))]
    if len(named) == 1 and not classifier.says_support:
        return named[0]
    if classifier.support is None and n_labels == 1:
        return 0
    if classifier.support is None:
        labels = ", ".join(f"{number} {label}" for number, label in config.id2label.items())
        raise FatalJudgeError(
            f"{classifier.model} does not say which of its labels means that a text supports a claim ({labels}); "
            f"say it: {LOCAL}:{classifier.model}?support=NUMBER"
        )
    if classifier.support >= n_labels:
        raise FatalJudgeError(
            f"{classifier.model} has the labels 0 to {n_labels - 1}, not support={classifier.support}"
        )
    return classifier.support


def _is_support(label: str) -> bool:
    return "".join(letter for letter in label.lower() if letter in ascii_lowercase) in list_support_labels()


def _find_max_tokens(classifier: Classifier, tokenizer: Any, config: Any) -> int:  # noqa: ANN401  # of transformers
    if classifier.max_tokens is not None:
        return classifier.max_tokens
    said = [tokenizer.model_max_length, getattr(config, "max_position_embeddings", None)]
    limits = [int(limit) for limit in said if isinstance(limit, int) and 0 < limit < _NO_LIMIT]
    if not limits:
        raise FatalJudgeError(f"{classifier.model} does not say how many tokens it reads; say it: …?max_tokens=NUMBER")
    return min(limits)


def _identify(classifier: Classifier, config: Any) -> str:  # noqa: ANN401  # a config of transformers
    """Which weights these are: the hub's commit, or the hash of a folder's files. Another model has another key."""
    folder = Path(classifier.model).expanduser()
    if not folder.is_dir():
        return str(getattr(config, "_commit_hash", None) or "unknown")[:12]
    digest = hashlib.sha256()
    for path in sorted({path for pattern in _WEIGHTS for path in folder.rglob(pattern)}):
        with path.open("rb") as opened:
            digest.update(path.name.encode() + hashlib.file_digest(opened, "sha256").digest())
    return digest.hexdigest()[:12]


class LocalJudge:
    """Gives verdicts by a classifier's scores. Prompt texts play no part in them.

    Questions are answered one after the other, in a thread of their own: a model uses all cores, or its device, alone.
    """

    endpoint = None
    tasks = LOCAL_TASKS

    def __init__(self, name: str, classifier: Classifier, pair_model: PairModel) -> None:
        self.name = name
        self.model = f"{LOCAL}:{classifier.model}@{pair_model.identity}"
        self._settings = pair_model.settings
        self._pair_model = pair_model
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="local-judge")

    def prepare(self, question: Question) -> ModelRequest:
        """The question's data under the model's identity and settings; `note` is for models that read."""
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
        """The verdicts, as a chat model would write them, with the scores that they rest on."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, partial(self._judge, request.payload))

    def _judge(self, payload: Mapping[str, object]) -> ModelReply:
        before, data = self._pair_model.n_tokens, payload["data"]
        assert isinstance(data, dict)
        verdicts = judge_pairs(str(payload["prompt"]), data, self._pair_model, joint=bool(payload["joint"]))
        n_tokens = self._pair_model.n_tokens - before
        return ModelReply(
            text=orjson.dumps(verdicts).decode(), model=self.model, prompt_tokens=n_tokens, completion_tokens=0
        )

    async def close(self) -> None:
        """What is not begun is given up, and what is under way ends with its batch."""
        self._pair_model.is_closed = True
        self._thread.shutdown(wait=False, cancel_futures=True)


def make_local_judge(name: str) -> LocalJudge:
    """`local:MODEL`, loaded; raises FatalJudgeError when it cannot be."""
    classifier = parse_classifier(name)
    return LocalJudge(name, classifier, PairModel(classifier))


@dataclass(frozen=True, kw_only=True)
class _Golden:
    """A golden pair's text, a claim about it, and whether the text supports the claim."""

    pair: Pair
    supported: bool


def check_golden_pairs(name: str) -> str:
    """Load a classifier and try what any of its kind gets right; raises FatalJudgeError that says what came instead."""
    classifier = parse_classifier(name)
    model = PairModel(classifier)
    golden = [item for pair in list_golden_pairs() for item in _lay_golden(pair, classifier)]
    scores = [scored.score for scored in model.score([item.pair for item in golden])]
    wrong = [
        f"{score:.2f} for “{item.pair.claim}”, which is {'' if item.supported else 'not '}supported"
        for item, score in zip(golden, scores, strict=True)
        if (score >= model.threshold) != item.supported
    ]
    if wrong:
        raise FatalJudgeError(_explain_golden(classifier, wrong, len(golden)))
    lowest = min(score for item, score in zip(golden, scores, strict=True) if item.supported)
    highest = max(score for item, score in zip(golden, scores, strict=True) if not item.supported)
    return (
        f"{model.identity} on {model.device} ({model.backend}); all {len(golden)} golden pairs come out right, "
        f"supported from {lowest:.2f}, not supported up to {highest:.2f}, threshold {model.threshold:g}"
    )


def _lay_golden(golden: GoldenPair, classifier: Classifier) -> Iterable[_Golden]:
    """Both claims; a text that is `far` stands behind two windows of others, by words, of which none has less than a
    token."""
    filler = read_filler()
    before = " ".join([filler] * (2 * classifier.window // len(filler.split()) + 1)) if golden.far else ""
    text = f"{before} {golden.text}".strip()
    yield _Golden(pair=Pair(document=text, claim=golden.supported), supported=True)
    yield _Golden(pair=Pair(document=text, claim=golden.unsupported), supported=False)


def _explain_golden(classifier: Classifier, wrong: Sequence[str], n: int) -> str:
    hint = "the label that means “supported” is probably another one (?support=NUMBER)"
    if 2 * len(wrong) <= n:
        hint = "prompt form, windows or threshold are probably not the model's own, or it is a weak one"
    return f"{classifier.model} gets {len(wrong)} of {n} golden pairs wrong: {hint}. {'; '.join(wrong[:3])}"
