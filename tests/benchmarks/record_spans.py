# ruff: noqa: PLC0415, ANN401  # each bot needs other libraries, which have types only there
"""Record the spans of real instrumentors, which tests/traces/test_recorded_spans.py reads as samples.

    python -m venv v && v/bin/pip install openinference-instrumentation-langchain langchain-openai langgraph
    v/bin/python tests/benchmarks/record_spans.py openinference_langchain tests/traces/recorded

Each bot answers one question about a ferry by a tool or a retriever, after an earlier turn, with a model server inside
this process that calls a tool where it has one. A file holds a line for each span, as the SDK prints it, and in the
first line the versions of the libraries. `--list` names the bots and their packages.
"""

import asyncio
import importlib.metadata
import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

FIRST, REPLY = "Is there a ferry to Quillon?", "Yes, two a day."
QUESTION, ANSWER = "When does the night ferry leave?", "The night ferry leaves at 22:40."
TEXTS = {"d1": "The night ferry leaves Quillon at 22:40.", "d2": "The day ferry leaves at noon."}
FOUND = [{"id": name, "text": text, "score": 0.9} for name, text in TEXTS.items()]
MODEL, SESSION, TOOL = "ferry-1", "s-7", "find_times"


class ModelServer(BaseHTTPRequestHandler):
    """Answers chat requests as OpenAI does: with a call of the first tool, and after its result with the answer."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        calls_tool = bool(body.get("tools")) and body["messages"][-1]["role"] != "tool"
        function = {"name": TOOL, "arguments": '{"query": "night ferry"}'}
        call = {"index": 0, "id": "call_1", "type": "function", "function": function}
        message = {"role": "assistant", "content": None if calls_tool else ANSWER}
        message |= {"tool_calls": [call]} if calls_tool else {}
        usage = {"prompt_tokens": 61, "completion_tokens": 6, "total_tokens": 67}
        choice = {"index": 0, "finish_reason": "tool_calls" if calls_tool else "stop"}
        whole = {"id": "chatcmpl-1", "created": 1_700_000_000, "model": MODEL, "usage": usage}
        if body.get("stream"):
            halves = [{**message, "content": ANSWER[:9]}, {"content": ANSWER[9:]}]
            parts = [message] if calls_tool else halves
            chunks = [{**choice, "finish_reason": None, "delta": part} for part in parts] + [{**choice, "delta": {}}]
            chunk = {**whole, "object": "chat.completion.chunk", "usage": None}
            lines = [{**chunk, "choices": [part]} for part in chunks]
            lines += [{**whole, "object": "chat.completion.chunk", "choices": []}]
            reply = "".join(f"data: {json.dumps(line)}\n\n" for line in lines) + "data: [DONE]\n\n"
        else:
            reply = json.dumps({**whole, "object": "chat.completion", "choices": [{**choice, "message": message}]})
        self.send_response(200)
        self.send_header("content-type", "text/event-stream" if body.get("stream") else "application/json")
        self.end_headers()
        self.wfile.write(reply.encode())

    def log_message(self, *_: object) -> None:
        pass


def find_times(query: str) -> str:
    """Find the times of ferries.

    Args:
        query: What to look for.
    """
    return json.dumps(FOUND)


# --- bots


def answer_with_langchain(url: str, **config: Any) -> None:
    """A chain with a retriever and a history, then an agent with a tool."""
    from langchain.agents import create_agent
    from langchain_core.documents import Document
    from langchain_core.messages import AIMessage, HumanMessage
    from langchain_core.output_parsers import StrOutputParser
    from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
    from langchain_core.retrievers import BaseRetriever
    from langchain_core.runnables import RunnablePassthrough
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI

    class Shelf(BaseRetriever):
        def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
            return [Document(id=name, page_content=text) for name, text in TEXTS.items()]

    model = ChatOpenAI(model=MODEL, base_url=url, api_key="none")
    placed = [("system", "Answer from: {context}"), MessagesPlaceholder("chat_history"), ("human", "{input}")]
    search = (lambda given: given["input"]) | Shelf()
    chain = (
        RunnablePassthrough.assign(context=search)
        | ChatPromptTemplate.from_messages(placed)
        | model
        | StrOutputParser()
    )
    history = [HumanMessage(FIRST), AIMessage(REPLY)]
    of_chain: Any = {"metadata": {"session_id": SESSION, "langfuse_session_id": SESSION}, **config}
    "".join(chain.stream({"input": QUESTION, "chat_history": history}, config=of_chain))
    agent: Any = create_agent(model, [tool(TOOL)(find_times)])
    agent.invoke({"messages": [*history, HumanMessage(QUESTION)]}, config=config)


def answer_with_langfuse(url: str) -> None:
    from langfuse import Langfuse
    from langfuse.langchain import CallbackHandler

    langfuse = Langfuse()
    answer_with_langchain(url, callbacks=[CallbackHandler()])
    langfuse.shutdown()


def answer_with_llama_index(url: str) -> None:
    """An engine, whole and streamed, then an agent with a tool."""
    from llama_index.core import QueryBundle
    from llama_index.core.agent.workflow import FunctionAgent
    from llama_index.core.query_engine import RetrieverQueryEngine
    from llama_index.core.response_synthesizers import get_response_synthesizer
    from llama_index.core.retrievers import BaseRetriever
    from llama_index.core.schema import NodeWithScore, TextNode
    from llama_index.llms.openai_like import OpenAILike

    class Shelf(BaseRetriever):
        def _retrieve(self, query: QueryBundle) -> list[NodeWithScore]:
            return [NodeWithScore(node=TextNode(id_=name, text=text), score=0.9) for name, text in TEXTS.items()]

    async def ask_agent() -> None:
        await FunctionAgent(tools=[find_times], llm=model).run(user_msg=QUESTION)

    model = OpenAILike(model=MODEL, api_base=url, api_key="none", is_chat_model=True, is_function_calling_model=True)
    for streams in (False, True):
        synthesizer = get_response_synthesizer(llm=model, streaming=streams)
        answer = RetrieverQueryEngine(retriever=Shelf(), response_synthesizer=synthesizer).query(QUESTION)
        if streams:
            "".join(answer.response_gen)
    asyncio.run(ask_agent())


def answer_with_openai(url: str) -> None:
    """The client alone: an agent's loop by hand, the last request streamed."""
    import openai

    client = openai.OpenAI(base_url=url, api_key="none")
    messages: list[Any] = [
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": FIRST},
        {"role": "assistant", "content": REPLY}, {"role": "user", "content": QUESTION},
    ]  # fmt: skip
    tools: Any = [{"type": "function", "function": {"name": TOOL, "parameters": {"type": "object", "properties": {}}}}]
    first = client.chat.completions.create(model=MODEL, messages=messages, tools=tools)
    call = first.choices[0].message.tool_calls[0].model_dump(exclude={"index"})
    messages += [{"role": "assistant", "content": None, "tool_calls": [call]}]
    messages += [{"role": "tool", "tool_call_id": "call_1", "content": json.dumps(FOUND)}]
    for _ in client.chat.completions.create(model=MODEL, messages=messages, tools=tools, stream=True):
        pass


def answer_with_strands(url: str) -> None:
    from strands import Agent, tool
    from strands.models.openai import OpenAIModel

    model = OpenAIModel(client_args={"base_url": url, "api_key": "none"}, model_id=MODEL)
    earlier: Any = [
        {"role": "user", "content": [{"text": FIRST}]}, {"role": "assistant", "content": [{"text": REPLY}]},
    ]  # fmt: skip
    attributes = {"session.id": SESSION}
    Agent(
        model=model,
        tools=[tool(name=TOOL)(find_times)],
        messages=earlier,
        trace_attributes=attributes,
        callback_handler=None,
    )(QUESTION)


def answer_with_pydantic_ai(url: str) -> None:
    from pydantic_ai import Agent
    from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, UserPromptPart
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    agent = Agent(OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=url, api_key="none")), name="ferries")

    @agent.tool_plain(name=TOOL)
    def find_times(query: str) -> list[dict[str, Any]]:
        """Find the times of ferries."""
        return FOUND

    earlier = [ModelRequest(parts=[UserPromptPart(FIRST)]), ModelResponse(parts=[TextPart(REPLY)])]
    agent.run_sync(QUESTION, message_history=earlier)


def answer_with_mlflow(url: str) -> None:
    import mlflow
    import openai
    from mlflow.entities import Document

    mlflow.openai.autolog()

    @mlflow.trace(span_type="RETRIEVER")
    def search(query: str) -> list[Document]:
        return [Document(page_content=text, id=name) for name, text in TEXTS.items()]

    @mlflow.trace(span_type="CHAIN")
    def answer(question: str) -> str:
        prompt = f"{question} {search(question)}"
        client = openai.OpenAI(base_url=url, api_key="none")
        messages: Any = [{"role": "user", "content": prompt}]
        return str(client.chat.completions.create(model=MODEL, messages=messages).choices[0].message.content)

    answer(QUESTION)


def answer_with_agent_framework(url: str) -> None:
    from agent_framework import Agent, Message
    from agent_framework.openai import OpenAIChatCompletionClient

    client = OpenAIChatCompletionClient(model=MODEL, base_url=url, api_key="none")
    agent = Agent(client=client, tools=[find_times], name="ferries")
    asked = [Message("user", [FIRST]), Message("assistant", [REPLY]), Message("user", [QUESTION])]
    asyncio.run(agent.run(asked))


def answer_with_promptflow(url: str) -> None:
    import openai
    from promptflow.tracing import trace

    @trace
    def answer(question: str) -> str:
        client = openai.OpenAI(base_url=url, api_key="none")
        messages: Any = [{"role": "user", "content": question}]
        return str(client.chat.completions.create(model=MODEL, messages=messages).choices[0].message.content)

    answer(QUESTION)


def answer_with_google_adk(url: str) -> None:
    from google.adk.agents import LlmAgent
    from google.adk.models import BaseLlm, LlmResponse
    from google.adk.runners import InMemoryRunner
    from google.genai import types

    class Model(BaseLlm):
        async def generate_content_async(self, request: Any, stream: bool = False) -> Any:
            is_called = any(part.function_response for content in request.contents for part in content.parts)
            call = types.FunctionCall(name=TOOL, args={"query": "night ferry"})
            part = types.Part(text=ANSWER) if is_called else types.Part(function_call=call)
            usage = types.GenerateContentResponseUsageMetadata(prompt_token_count=61, candidates_token_count=6)
            yield LlmResponse(content=types.Content(role="model", parts=[part]), usage_metadata=usage)

    def find_times(query: str) -> dict[str, Any]:
        """Find the times of ferries."""
        return {"documents": FOUND}

    async def ask() -> None:
        runner = InMemoryRunner(
            LlmAgent(name="ferries", model=Model(model=MODEL), tools=[find_times]), app_name="ferries"
        )
        await runner.session_service.create_session(app_name="ferries", user_id="u", session_id=SESSION)
        asked = types.Content(role="user", parts=[types.Part(text=QUESTION)])
        async for _ in runner.run_async(user_id="u", session_id=SESSION, new_message=asked):
            pass

    asyncio.run(ask())


# --- instrumentors


def instrument(module: str, name: str) -> Callable[[Any], None]:
    """Return a function that starts an instrumentor of OpenTelemetry with a provider."""

    def start(provider: Any) -> None:
        getattr(importlib.import_module(module), name)().instrument(tracer_provider=provider)

    return start


def instrument_pydantic_ai(provider: Any) -> None:
    from pydantic_ai import Agent
    from pydantic_ai.models.instrumented import InstrumentationSettings

    Agent.instrument_all(InstrumentationSettings(tracer_provider=provider))


def instrument_agent_framework(_: Any) -> None:
    from agent_framework.observability import enable_sensitive_telemetry

    enable_sensitive_telemetry()


def start_promptflow(provider: Any) -> None:
    from promptflow.tracing._integrations._openai_injector import inject_openai_api

    inject_openai_api()


OPENINFERENCE, OPENLLMETRY = "openinference.instrumentation", "opentelemetry.instrumentation"
BOTS: dict[str, tuple[Callable[[str], None], Callable[[Any], None], tuple[str, ...]]] = {
    "openinference_langchain": (
        answer_with_langchain, instrument(f"{OPENINFERENCE}.langchain", "LangChainInstrumentor"),
        ("openinference-instrumentation-langchain", "langchain", "langchain-openai"),
    ),
    "openinference_llama_index": (
        answer_with_llama_index, instrument(f"{OPENINFERENCE}.llama_index", "LlamaIndexInstrumentor"),
        ("openinference-instrumentation-llama-index", "llama-index-core", "llama-index-llms-openai-like"),
    ),
    "openinference_openai": (
        answer_with_openai, instrument(f"{OPENINFERENCE}.openai", "OpenAIInstrumentor"),
        ("openinference-instrumentation-openai", "openai"),
    ),
    "openllmetry_langchain": (
        answer_with_langchain, instrument(f"{OPENLLMETRY}.langchain", "LangchainInstrumentor"),
        ("opentelemetry-instrumentation-langchain", "langchain", "langchain-openai"),
    ),
    "openllmetry_openai": (
        answer_with_openai, instrument(f"{OPENLLMETRY}.openai", "OpenAIInstrumentor"),
        ("opentelemetry-instrumentation-openai", "openai"),
    ),
    "langfuse": (answer_with_langfuse, lambda _: None, ("langfuse", "langchain", "langchain-openai")),
    "strands": (answer_with_strands, lambda _: None, ("strands-agents", "openai")),
    "strands_latest": (answer_with_strands, lambda _: None, ("strands-agents", "openai")),
    "pydantic_ai": (answer_with_pydantic_ai, instrument_pydantic_ai, ("pydantic-ai-slim", "openai")),
    "mlflow": (answer_with_mlflow, lambda _: None, ("mlflow-tracing", "mlflow-skinny", "pandas", "openai")),
    "agent_framework": (
        answer_with_agent_framework, instrument_agent_framework, ("agent-framework-core", "agent-framework-openai"),
    ),
    "promptflow": (answer_with_promptflow, start_promptflow, ("promptflow-tracing", "openai")),
    "google_adk": (answer_with_google_adk, lambda _: None, ("google-adk",)),
}  # fmt: skip


def record(name: str, target: str, token: str = "") -> None:
    """Write the spans of one bot to `TARGET/NAME.jsonl`, or send them to a receiver at that address."""
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.http import Compression
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExporter, SpanExportResult

    if name in ("strands_latest", "google_adk"):
        os.environ["OTEL_SEMCONV_STABILITY_OPT_IN"] = "gen_ai_latest_experimental"
    os.environ |= {
        "MLFLOW_USE_DEFAULT_TRACER_PROVIDER": "false",  # the one of OpenTelemetry in its place
        "MLFLOW_TRACKING_URI": Path(tempfile.mkdtemp()).as_uri(),
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "PF_DISABLE_TRACING": "false",
        "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "SPAN_ONLY",
        "OTEL_SERVICE_NAME": "ferry-bot",
        "LANGFUSE_BASE_URL": target.removesuffix("/v1/traces"),
        "LANGFUSE_PUBLIC_KEY": "pk-any",
        "LANGFUSE_SECRET_KEY": token,
    }
    answer, start, packages = BOTS[name]
    lines: list[str] = []

    class Lines(SpanExporter):
        def export(self, spans: Any) -> SpanExportResult:
            lines.extend(span.to_json(indent=None) for span in spans)
            return SpanExportResult.SUCCESS

    is_sent = target.startswith("http")
    if name != "langfuse":  # its SDK brings an exporter
        provider = TracerProvider(resource=Resource({"service.name": "ferry-bot"}))
        headers = {"authorization": f"Bearer {token}"}
        sent = OTLPSpanExporter(endpoint=target, headers=headers, compression=Compression.Gzip) if is_sent else None
        provider.add_span_processor(BatchSpanProcessor(sent) if sent else SimpleSpanProcessor(Lines()))
        trace.set_tracer_provider(provider)
        start(provider)
    server = ThreadingHTTPServer(("127.0.0.1", 0), ModelServer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    answer(f"http://127.0.0.1:{server.server_port}/v1")
    if name != "langfuse":
        provider.shutdown()
    server.shutdown()
    if is_sent:
        return
    folder = Path(target)
    versions = {package: importlib.metadata.version(package) for package in packages}
    (folder / f"{name}.jsonl").write_text("\n".join([*lines, ""]), encoding="utf-8")
    listed = folder / "versions.json"
    others = json.loads(listed.read_text(encoding="utf-8")) if listed.exists() else {}
    listed.write_text(json.dumps({**others, name: versions}, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    print(name, len(lines), "spans", versions)


if __name__ == "__main__":
    if sys.argv[1:] == ["--list"]:
        for bot, (_, _, needed) in BOTS.items():
            print(f"{bot}: {' '.join(needed)}")
    else:
        record(*sys.argv[1:])
