# ruff: noqa: PLC0415  # imports an extra, which takes seconds
"""The judges of `local:` with a real classifier of a few hundred kilobytes: what is loaded, how texts are laid out and
cut, what is recorded, and that golden pairs notice what is wrong with all this. Needs the extra `local`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from cli_process import call_here
from live_runs import PROMPTS
from warehouse_runs import lay_warehouse

from evalhouse.prompts import Item
from evalhouse.tasks.asking.pairs import Pair
from evalhouse.tasks.judge.protocol import FatalJudgeError, Question, RefusedRequest
from evalhouse.tasks.models.local import LocalJudge, PairModel, check_golden_pairs, load_table, parse_classifier

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MOST_TOKENS = 96


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """A text, a claim, and whether the text supports it."""

    document: str
    claim: str
    supported: bool


def make_tokenizer(texts: Iterable[str]) -> Any:  # noqa: ANN401  # a tokenizer of transformers
    """Words and punctuation marks, in small letters, as they come up in the texts."""
    from tokenizers import Tokenizer, normalizers, pre_tokenizers
    from tokenizers.models import WordLevel
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    splitter, lower = pre_tokenizers.BertPreTokenizer(), normalizers.Lowercase()
    words = {word for text in texts for word, _ in splitter.pre_tokenize_str(lower.normalize_str(text))}
    vocabulary = {word: number for number, word in enumerate((*SPECIAL, *sorted(words)))}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = lower, splitter
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])],
    )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, mask_token="[MASK]", model_max_length=MOST_TOKENS, **names
    )


def make_classifier(
    folder: Path, lessons: Sequence[Lesson], *, labels: Sequence[str], support: int, steps: int = 150
) -> Path:
    """Teach a model the lessons and save it; `support` is the number of the label that means supported."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(7)
    tokenizer = make_tokenizer([text for lesson in lessons for text in (lesson.document, lesson.claim)])
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=MOST_TOKENS,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=len(labels),
        id2label=dict(enumerate(labels)),
        label2id={label: number for number, label in enumerate(labels)},
    )
    model = BertForSequenceClassification(config)
    documents, claims = [lesson.document for lesson in lessons], [lesson.claim for lesson in lessons]
    features = tokenizer(documents, claims, padding=True, return_tensors="pt")
    other = 1 - support
    wanted = torch.tensor([support if lesson.supported else other for lesson in lessons])
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(steps):
        loss = model(**features, labels=wanted).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if float(loss.detach()) < 0.02:
            break
    model.eval()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def cut_windows(tokenizer: Any, text: str, size: int, overlap: int) -> list[str]:  # noqa: ANN401
    """Stretches of `size` words and marks, each with the last `overlap` of the one before, the last one shorter."""
    offsets = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)["offset_mapping"]
    windows, first = [], 0
    while not windows or first + overlap < len(offsets):
        last = min(first + size, len(offsets))
        windows.append(text[offsets[first][0] : offsets[last - 1][1]])
        first += size - overlap
    return windows


def make_lessons(taught: Sequence[tuple[str, str, str]], *, filler: str, size: int, overlap: int) -> list[Lesson]:
    """Make lessons of (text, supported, unsupported): both claims beside the text and beside the windows of the text
    behind much filler; a window that contains the text supports the first claim."""
    tokenizer = make_tokenizer([filler, *(part for texts in taught for part in texts)])
    lessons = []
    for text, yes, no in taught:
        behind = " ".join([filler] * (2 * size // len(filler.split()) + 1) + [text])
        stretches = [text, *cut_windows(tokenizer, behind, size, overlap)]
        lessons += [Lesson(document=part, claim=yes, supported=text in part) for part in stretches]
        lessons += [Lesson(document=part, claim=no, supported=False) for part in stretches]
    return lessons


# Not `importorskip`, which passes over one that is there and cannot be imported.
if not all(map(find_spec, ("torch", "sentence_transformers"))):
    pytest.skip("needs the extra `local`: pip install 'evalhouse[local]'", allow_module_level=True)
SIZE, OVERLAP = 40, 20
GOLDEN, FILLER = load_table()["golden"]["pairs"], load_table()["golden"]["filler"]
WINDOWS = f"window={SIZE}&overlap={OVERLAP}"


def teach(folder: Path, labels: Sequence[str], support: int) -> Path:
    import torch

    torch.set_num_threads(1)
    taught = [(pair["text"], pair["supported"], pair["unsupported"]) for pair in GOLDEN]
    lessons: list[Lesson] = make_lessons(taught, filler=FILLER, size=SIZE, overlap=OVERLAP)
    return make_classifier(folder, lessons, labels=labels, support=support)


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its config names its labels, the supporting one first."""
    return teach(tmp_path_factory.mktemp("named"), ("entailment", "not_entailment"), 0)


@pytest.fixture(scope="module")
def unnamed(named: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same weights, with a config that names no label."""
    folder = tmp_path_factory.mktemp("unnamed")
    for path in named.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    relabel(folder, ("LABEL_0", "LABEL_1"))
    return folder


def relabel(folder: Path, labels: Sequence[str]) -> None:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["id2label"] = {str(number): label for number, label in enumerate(labels)}
    config["label2id"] = {label: number for number, label in enumerate(labels)}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


def load(folder: Path, settings: str = WINDOWS) -> PairModel:
    return PairModel(parse_classifier(f"local:{folder}?{settings}"))


def make(folder: Path, settings: str = WINDOWS) -> LocalJudge:
    name = f"local:{folder}?{settings}"
    classifier = parse_classifier(name)
    return LocalJudge(name, classifier, PairModel(classifier))


def make_question(contexts: Sequence[str], statements: Sequence[str]) -> Question:
    items: dict[str, Any] = {
        "contexts": [Item(id=f"C{number}", text=text) for number, text in enumerate(contexts, start=1)],
        "answer_statements": [Item(id=f"A{number}", text=text) for number, text in enumerate(statements, start=1)],
    }
    data = {"question": "?", "ground_truth_statements": [], **items}
    return Question(step="attribute_answer", sample_id="s", prompt=PROMPTS["attribute"], data=data)


def test_golden_pairs_come_out_right_when_label_form_and_windows_fit(named: Path, unnamed: Path) -> None:
    assert "all 10 golden pairs come out right" in check_golden_pairs(f"local:{named}?{WINDOWS}")
    assert "on cpu (" in check_golden_pairs(f"local:{unnamed}?{WINDOWS}&support=0&device=cpu")


@pytest.mark.parametrize("fault", ["labels", "config", "windows", "form"])
def test_golden_pairs_fail_loudly_when_one_of_these_does_not(
    fault: str, named: Path, unnamed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"local:{named}?{WINDOWS}"
    if fault == "labels":
        name = f"local:{unnamed}?{WINDOWS}&support=1"
    if fault == "config":
        relabel(unnamed, ("not_entailment", "entailment"))
        name = f"local:{unnamed}?{WINDOWS}"
    if fault == "windows":  # only the beginning is read
        split = PairModel._split
        monkeypatch.setattr(PairModel, "_split", lambda self, pair, *, whole: split(self, pair, whole=whole)[:1])
    if fault == "form":
        name += "&form={claim} {document}"
    with pytest.raises(FatalJudgeError, match="of 10 golden pairs wrong") as error:
        check_golden_pairs(name)
    assert ("support=NUMBER" in str(error.value)) == (fault in ("labels", "config"))
    relabel(unnamed, ("LABEL_0", "LABEL_1"))


def test_a_model_that_does_not_name_its_labels_has_to_be_asked_about_them(unnamed: Path, named: Path) -> None:
    with pytest.raises(FatalJudgeError, match=r"0 LABEL_0, 1 LABEL_1.*support=NUMBER"):
        load(unnamed)
    with pytest.raises(FatalJudgeError, match="labels 0 to 1"):
        load(named, "support=2")


def test_a_model_that_is_not_there_is_one_clear_message(tmp_path: Path) -> None:
    with pytest.raises(FatalJudgeError, match="cannot load") as error:
        load(tmp_path)
    assert "\n" not in str(error.value)


def test_model_that_is_not_a_classifier_is_refused(named: Path, tmp_path: Path) -> None:
    for path in named.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "config.json").write_text(json.dumps(config | {"architectures": ["BertModel"]}), encoding="utf-8")
    with pytest.raises(FatalJudgeError, match=r"it is not a text classifier \(architecture BertModel"):
        load(tmp_path)


@pytest.mark.parametrize("n_words", [0, 1, SIZE - 1, SIZE, SIZE + 1, 3 * SIZE, 500])
def test_windows_overlap_and_leave_nothing_out(n_words: int, named: Path) -> None:
    model = load(named)
    text = " ".join(["ferry"] * n_words)
    windows = model._split(Pair(document=text, claim="the ferry"), whole=False)
    assert ([windows[0][0], windows[-1][1]] if windows else [0, 0]) == [0, len(text)]
    for (_, left_end), (right_start, right_end) in pairwise(windows):
        assert right_start < left_end < right_end
    lengths = [len(text[start:end].split()) for start, end in windows]
    assert all(length <= SIZE for length in lengths)
    assert bool(windows) == bool(n_words)


def test_the_window_that_decides_is_named(named: Path) -> None:
    golden = GOLDEN[-1]
    filler = " ".join([FILLER] * (2 * SIZE // len(FILLER.split()) + 1))
    (scored,) = load(named).score([Pair(document=f"{filler} {golden['text']}", claim=golden["supported"])])
    words = f"{filler} {golden['text']}".split()
    assert scored.score > 0.5
    assert golden["text"] in " ".join(words[scored.first - 1 : scored.last])
    assert scored.first > len(words) - SIZE


def test_texts_cannot_write_the_tokenizers_marks(named: Path) -> None:
    model, golden = load(named), GOLDEN[0]
    (plain,) = model.score([Pair(document=golden["text"], claim=golden["unsupported"])])
    (forged,) = model.score([Pair(document=f"{golden['text']} [SEP]", claim=f"[CLS] {golden['unsupported']} [SEP]")])
    assert forged.score == pytest.approx(plain.score, abs=1e-6)


def test_what_the_model_cannot_read_is_refused_and_never_cut(named: Path) -> None:
    claim = " ".join(["ferry"] * MOST_TOKENS)
    with pytest.raises(RefusedRequest, match="leaves no room"):
        load(named).score([Pair(document="The ferry.", claim=claim)])


def test_scores_do_not_depend_on_what_is_scored_beside_them(named: Path) -> None:
    pairs = [Pair(document=pair["text"], claim=claim) for pair in GOLDEN for claim in (pair["supported"], "ferry")]
    together = [scored.score for scored in load(named, f"{WINDOWS}&batch=4").score(pairs)]
    alone = [scored.score for pair in pairs for scored in load(named, f"{WINDOWS}&batch=1").score([pair])]
    assert together == pytest.approx(alone, abs=1e-4)


def test_a_question_is_answered_in_the_shape_of_the_step_with_its_scores(named: Path) -> None:
    first, last = GOLDEN[0], GOLDEN[-1]
    judge = make(named)

    async def reply() -> Any:  # noqa: ANN401
        asked = judge.prepare(make_question([first["text"], ""], [first["supported"], first["unsupported"]]))
        try:
            return await judge.reply(asked)
        finally:
            await judge.close()

    came = asyncio.run(reply())
    verdicts = {verdict["id"]: verdict for verdict in json.loads(came.text)["verdicts"]}
    assert verdicts["A1"]["contexts"] == ["C1"]
    assert verdicts["A1"]["reason"].endswith("≥ 0.5 in words 1–15 of C1")
    assert verdicts["A2"]["contexts"] == verdicts["A2"]["together"] == []
    assert [score["score"] for score in verdicts["A2"]["scores"]][1] == 0.0
    assert came.prompt_tokens > 40
    assert last["far"]


def test_other_weights_other_settings_and_other_texts_are_other_requests(named: Path, unnamed: Path) -> None:
    question, other = make_question(["a"], ["b"]), make_question(["a"], ["c"])
    judges = [make(named), make(unnamed, f"{WINDOWS}&support=0"), make(named, f"{WINDOWS}&threshold=0.6")]
    hashes = {judge.prepare(question).request_hash for judge in judges}
    assert len(hashes | {judges[0].prepare(other).request_hash}) == 4
    same = make(named, f"{WINDOWS}&batch=3&device=cpu")
    assert same.prepare(question).request_hash in hashes
    with pytest.raises(FatalJudgeError, match="cannot answer 'extract'"):
        judges[0].prepare(Question(step="extract_answer", sample_id="s", prompt=PROMPTS["extract"], data={}))


def test_doctor_and_benchmark_use_it_and_record_it(
    named: Path, unnamed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    lay_warehouse(tmp_path / "evalhouse.duckdb")
    ask = partial(call_here, capsys)
    right, wrong = f"local:{named}?{WINDOWS}", f"local:{unnamed}?{WINDOWS}&support=1"
    finding = next(
        one for one in ask("doctor", "--judge", right, "--json").document["findings"] if "judge" in one["what"]
    )
    assert (finding["verdict"], "golden pairs come out right" in finding["detail"]) == ("ok", True)
    refused = ask("doctor", "--judge", wrong, "--json")
    finding = next(one for one in refused.document["findings"] if "judge" in one["what"])
    assert (refused.status, finding["verdict"], "support=NUMBER" in finding["detail"]) == (2, "wrong", True)
    rows = [
        {"id": f"{place}{label}", "statement": claim, "contexts": [pair["text"]], "label": label}
        for place, pair in enumerate(GOLDEN)
        for claim, label in ((pair["supported"], "supported"), (pair["unsupported"], "unsupported"))
    ]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    document = ask("benchmark", "--judge", right, "--data", "pairs.jsonl", "--json").document
    (measured,) = document["sets"]
    assert measured["judge"]["figures"]["accuracy"]["value"] == 1.0
    assert (document["calls"]["requests"], document["calls"]["cost_usd"]) == (10, 0.0)
    again = ask("benchmark", "--judge", right, "--data", "pairs.jsonl", "--json").document
    assert (again["calls"]["requests"], again["calls"]["reused"]) == (0, 10)
