"""From what an application gave back to an answer with contexts, whether it came over the wire or from a function.

Contexts are understood as a dataset's are (`dataset_rows`): texts, or objects with text, content or page_content and an
id; LangChain's documents and messages are known by their attributes, so nothing of LangChain is imported here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evalhouse.tasks.datasets.rows import TEXT_KEYS, is_absent, read_contexts, read_ids
from evalhouse.tasks.messages import list_names, name_kind, quote_value
from evalhouse.tasks.targets.errors import QuestionFailed

ANSWER_KEYS = ("answer", "output", "result", "text")
CONTEXTS_KEYS = ("contexts", "context", "documents", "source_documents")
_IDS_KEY = "context_ids"
_FORMS = "a text, a mapping with answer and contexts, or a tuple of answer and contexts"


@dataclass(frozen=True, kw_only=True, slots=True)
class Said:
    """One answer, not empty, and what it rests on; None for contexts and ids that were not told."""

    answer: str
    contexts: tuple[str, ...] | None
    context_ids: tuple[str, ...] | None


def read_returned(value: object) -> Said:
    """What a function or a Runnable returned; raises QuestionFailed that says what is wrong with it."""
    if isinstance(value, tuple):
        if len(value) != 2:
            raise QuestionFailed(f"a tuple of {len(value)} was returned; allowed: {_FORMS}")
        return make_said(_read_message(value[0]), value[1])
    if isinstance(value, Mapping):
        return _read_mapping(value)
    text = _read_message(value)
    if not (text is None or isinstance(text, str)):
        raise QuestionFailed(f"{name_kind(text)} was returned: {quote_value(text)}; allowed: {_FORMS}")
    return make_said(text, None)


def make_said(answer: object, contexts: object, context_ids: object = None) -> Said:
    """The answer with its contexts, of which a single text or object is one; raises QuestionFailed."""
    problems: list[str] = []

    def say(_kind: str, text: str) -> None:
        problems.append(text)

    given_ids = read_ids(_listen(context_ids), _IDS_KEY, say, tabular=False)
    read = read_contexts(_listen_contexts(contexts), say, tabular=False)
    ids = read.ids if given_ids is None else given_ids
    if given_ids is not None and len(given_ids) != len(read.texts or ()):
        problems.append(f"there are {len(given_ids)} context_ids for {len(read.texts or ())} contexts")
    text = _read_answer(answer, problems)
    _check_encoding(problems, text, *(read.texts or ()), *(ids or ()))
    if problems:
        raise QuestionFailed("; ".join(problems))
    return Said(
        answer=text,
        contexts=None if read.texts is None else tuple(read.texts),
        context_ids=None if ids is None else tuple(ids),
    )


def _read_mapping(value: Mapping[object, object]) -> Said:
    answer_key = next((key for key in ANSWER_KEYS if not is_absent(value.get(key))), None)
    contexts_key = next((key for key in CONTEXTS_KEYS if not is_absent(value.get(key))), None)
    messages = value.get("messages")
    if answer_key is not None:
        answer = _read_message(value[answer_key])
    elif isinstance(messages, Sequence) and not isinstance(messages, str) and messages:
        answer = _read_message(messages[-1])  # an agent's talk, of which the last message is the answer
    elif present := [key for key in ANSWER_KEYS if key in value]:
        raise QuestionFailed(f"the answer is empty: {present[0]!r} is null")
    else:
        known = ", ".join(ANSWER_KEYS)
        keys = list_names([str(key) for key in value], 8)
        raise QuestionFailed(f"the mapping that was returned has no answer; it has: {keys}; looked for: {known}")
    return make_said(answer, value[contexts_key] if contexts_key else None, value.get(_IDS_KEY))


def _read_message(value: object) -> object:
    """The text of a chat message, anything else as it is. Its content may be in parts, of which some are no text."""
    content = getattr(value, "content", None)
    if content is None or isinstance(value, str | Mapping) or not isinstance(getattr(value, "type", None), str):
        return value
    if not isinstance(content, list):
        return content
    texts = [part.get("text") if isinstance(part, dict) else part for part in content]
    return "".join(text for text in texts if isinstance(text, str))


def _read_answer(value: object, problems: list[str]) -> str:
    if isinstance(value, str):
        if not value.strip():
            problems.append("the answer is empty")
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float) and not is_absent(value):
        return str(value)
    if is_absent(value):
        problems.append("the answer is empty")
    else:
        problems.append(f"the answer is {name_kind(value)}, not text: {quote_value(value)}")
    return ""


def _listen_contexts(value: object) -> object:
    """Contexts as a dataset would have them."""
    items = _listen(value)
    return [_open_document(item) for item in items] if isinstance(items, list) else items


def _listen(value: object) -> object:
    """A list; one text, object or document is a list of one."""
    if isinstance(value, tuple):
        return list(value)
    is_one = isinstance(value, str | Mapping) or hasattr(value, TEXT_KEYS[-1])
    return [value] if is_one else value


def _open_document(item: object) -> object:
    """A LangChain document as an object of a dataset; its id may stand in its metadata, where it is found."""
    if isinstance(item, Mapping):
        return dict(item)
    if not hasattr(item, TEXT_KEYS[-1]):
        return item
    return {
        TEXT_KEYS[-1]: getattr(item, TEXT_KEYS[-1]),
        "id": getattr(item, "id", None),
        "metadata": getattr(item, "metadata", None),
    }


def _check_encoding(problems: list[str], *texts: str) -> None:
    """Half a character, as careless cutting leaves it, can be kept nowhere."""
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            problems.append(f"a text has half a character at position {error.start}: {quote_value(text)}")
            return
