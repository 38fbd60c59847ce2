# ruff: noqa: PLC0415  # imports an extra, which takes seconds
"""A classifier of document-claim support for tests: BERT of a few hundred kilobytes with its vocabulary. It is
taught by heart the pairs that it is given, and says the right thing of them only if it gets them as it was taught."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
