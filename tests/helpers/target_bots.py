"""Applications as users write them: functions for `callable`, Runnables and factories of them for `runnable`."""

import asyncio
import functools
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from operator import itemgetter
from typing import Any, NotRequired

from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.messages import AIMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnableLambda, RunnablePassthrough
from typing_extensions import TypedDict


class Watch:
    """Counts calls in flight; `gate` holds them while it is closed."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.gate = threading.Event()
        self.gate.set()
        self.reached = threading.Semaphore(0)
        self.in_flight = self.most = self.n = 0
        self.threads: set[str] = set()

    def __enter__(self) -> None:
        with self.lock:
            self.n += 1
            self.in_flight += 1
            self.most = max(self.most, self.in_flight)
            self.threads.add(threading.current_thread().name)
        self.reached.release()

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.in_flight -= 1


watch = Watch()
failures: list[BaseException] = []


def answer(question: str) -> str:
    return f"About {question}"


def answer_watched(question: str) -> str:
    with watch:
        watch.gate.wait(60)
        return f"About {question}"


async def answer_async(question: str) -> dict[str, Any]:
    with watch:
        await asyncio.sleep(0.01)
        return {"answer": f"About {question}", "contexts": [{"id": "a#1", "text": "one"}, {"text": "two"}]}


def answer_with_metadata(question: str, *, metadata: Mapping[str, Any], sample_id: str = "") -> tuple[str, list[str]]:
    return f"{sample_id}: {question}", [f"{name}={value}" for name, value in metadata.items()]


def answer_with_anything(question: str, *others: object, **named: object) -> str:
    return f"{question} {others} {named}"


def answer_from(question: str, contexts: list[str] | None, context_ids: list[str] | None) -> str:
    return f"{question} from {contexts} of {context_ids}"


def answer_later(question: str) -> Any:  # noqa: ANN401  # a plain function around an async one
    return answer_async(question)


def answer_with_ids(question: str) -> dict[str, Any]:
    documents = [Document(page_content="one", id="d1"), Document(page_content="two", metadata={"id": "d2"})]
    return {"output": question, "source_documents": documents}


class Bot:
    """A bot as an object."""

    def __init__(self, name: str) -> None:
        self.name = name

    def ask(self, question: str) -> str:
        return f"{self.name}: {question}"

    async def __call__(self, question: str) -> str:
        return f"{self.name} later: {question}"


bot = Bot("bot")
partial_answer = functools.partial(answer_with_metadata, metadata={"k": 1})
number = 42


def break_down(question: str) -> str:
    raise failures.pop(0) if len(failures) > 1 else failures[0]


async def break_down_async(question: str) -> str:
    raise failures.pop(0) if len(failures) > 1 else failures[0]


async def hang(question: str) -> str:
    await asyncio.Event().wait()
    return question


def answer_nothing() -> str:
    return ""


def answer_two(question: str, other: str) -> str:
    return question + other


def answer_in_parts(question: str) -> Iterator[str]:
    yield question


async def answer_in_parts_async(question: str) -> AsyncIterator[str]:
    yield question


returned: list[Any] = []


def give(question: str) -> Any:  # noqa: ANN401
    return returned[0]


# LangChain


class Retriever(BaseRetriever):
    """Finds the same two documents for everything."""

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        return [Document(page_content=f"on {query}", id="d1"), Document(page_content="other", metadata={"id": "d2"})]


def make_model() -> FakeListChatModel:
    return FakeListChatModel(responses=["The model's answer."])


def join(documents: list[Document]) -> str:
    return " ".join(document.page_content for document in documents)


class Wanted(TypedDict):
    """An input with something besides the question."""

    query: str
    country: str


def take_wanted(wanted: Wanted) -> str:
    return f"{wanted['query']} in {wanted['country']}"


class Grounded(TypedDict):
    """An input that may bring its contexts."""

    question: str
    contexts: NotRequired[list[str]]


def take_grounded(grounded: Grounded) -> str:
    return f"{grounded['question']} from {grounded.get('contexts')}"


class Odd(TypedDict):
    """An input of which nothing is known to be the question."""

    left: str
    right: str


def take_odd(odd: Odd) -> str:
    return odd["left"]


def take_text(question: str) -> str:
    return f"text {question}"


def take_messages(state: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [*state["messages"], AIMessage(f"heard {state['messages'][0]['content']}")]}


class State(TypedDict):
    """The input of an agent."""

    messages: list[Any]


def tell(value: Any) -> Any:  # noqa: ANN401
    return f"{type(value).__name__}: {value}"


def make_blocks(question: str) -> AIMessage:
    return AIMessage(content=[{"type": "reasoning", "reasoning": "hm"}, {"type": "text", "text": "In "}, "blocks."])


def raise_error(question: str) -> str:
    raise failures[0]


model = make_model()
prompted: Runnable[Any, Any] = ChatPromptTemplate.from_template("Q: {question}") | make_model()
parsed: Runnable[Any, Any] = (
    {"context": Retriever() | join, "question": RunnablePassthrough()}
    | ChatPromptTemplate.from_template("{context} Q: {question}")
    | make_model()
    | StrOutputParser()
)
retrieving: Runnable[Any, Any] = RunnablePassthrough.assign(context=itemgetter("input") | Retriever()) | (
    RunnablePassthrough.assign(answer=ChatPromptTemplate.from_template("{input} {context}") | make_model())
)
wanting = RunnableLambda(take_wanted)
odd = RunnableLambda(take_odd)
answering_from = RunnableLambda(take_grounded)
texted = RunnableLambda(take_text)
agent = RunnableLambda(take_messages).with_types(input_type=State)
anything = RunnableLambda(tell)
any_object = RunnableLambda(tell).with_types(input_type=dict)
blocks = RunnableLambda(make_blocks)
failing = RunnableLambda(raise_error)
hanging = RunnableLambda(hang)


def make_chain() -> Runnable[Any, Any]:
    return parsed


async def make_chain_later() -> Runnable[Any, Any]:
    return parsed


class GraphState(TypedDict):
    """The state of a graph, which writes all but the question."""

    question: str
    context: list[Document]
    answer: str


def make_graph() -> Runnable[Any, Any]:
    from langgraph.graph import START, StateGraph  # noqa: PLC0415  # one test needs it

    graph = StateGraph(GraphState)
    graph.add_node("retrieve", lambda state: {"context": [Document(id="d1", page_content=f"on {state['question']}")]})
    graph.add_node("answer", lambda state: {"answer": f"Read {state['context'][0].page_content}."})
    graph.add_edge(START, "retrieve")
    graph.add_edge("retrieve", "answer")
    return graph.compile()


def fail_to_make() -> Runnable[Any, Any]:
    raise LookupError("no index at ./index, key sk-1234567890abcdef")


def remember(question: str, conversation: list[dict[str, str]]) -> str:
    return join_messages([*conversation, {"role": "user", "content": question}])


def join_messages(messages: list[Any]) -> str:
    return " | ".join(message["content"] if isinstance(message, dict) else message.content for message in messages)


class TalkInput(TypedDict):
    question: str
    chat_history: NotRequired[list[dict[str, str]]]


class SessionInput(TypedDict):
    question: str
    session_id: str


class AgentInput(TypedDict):
    messages: list[dict[str, str]]


def _answer_agent(given: AgentInput) -> str:
    return join_messages(given["messages"])


def _answer_talk(given: TalkInput) -> str:
    return remember(given["question"], given.get("chat_history", []))


def _answer_session(given: SessionInput) -> str:
    return f"{given['session_id']}: {given['question']}"


def _answer_text(text: str) -> str:
    return f"About {text}"


agent_of_messages = RunnableLambda(_answer_agent)
with_chat_history = RunnableLambda(_answer_talk)
with_session = RunnableLambda(_answer_session)
chain_of_text = RunnableLambda(_answer_text)


class EchoingModel(FakeListChatModel):
    """A chat model that says what it was given."""

    def _call(self, messages: list[Any], *_: Any, **__: Any) -> str:  # noqa: ANN401
        return join_messages(messages)


chat_model_of_messages = EchoingModel(responses=[""])
