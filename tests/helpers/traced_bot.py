"""A bot that is traced by real instrumentors and exports by the real OTLP exporter. A separate process, because an
instrumentor changes the libraries it watches: `python traced_bot.py INSTRUMENTOR ENDPOINT RECEIVER TOKEN`."""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from typing import Any

warnings.simplefilter("ignore")

INSTRUMENTORS = {
    "openinference": (("openinference.instrumentation.langchain", "LangChainInstrumentor"),
     ("openinference.instrumentation.openai", "OpenAIInstrumentor")),
    "openllmetry": (("opentelemetry.instrumentation.langchain", "LangchainInstrumentor"),
     ("opentelemetry.instrumentation.openai", "OpenAIInstrumentor")),
    "langfuse": (("langfuse", "Langfuse"), ("langfuse.langchain", "CallbackHandler")),
}  # fmt: skip
QUESTION = "When does the night ferry leave?"
DOCUMENTS = ("The night ferry leaves Quillon at 22:40.", "The day ferry leaves at noon.")


def make_provider(receiver: str, token: str) -> Any:  # noqa: ANN401  # a TracerProvider
    from opentelemetry.exporter.otlp.proto.http import Compression  # noqa: PLC0415
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

    provider = TracerProvider(resource=Resource.create({"service.name": "ferry-bot"}))
    exporter = OTLPSpanExporter(
        endpoint=receiver, headers={"authorization": f"Bearer {token}"}, compression=Compression.Gzip
    )
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


def answer_with_langchain(endpoint: str, **config: Any) -> None:  # noqa: ANN401  # of a RunnableConfig
    from langchain_core.documents import Document  # noqa: PLC0415
    from langchain_core.output_parsers import StrOutputParser  # noqa: PLC0415
    from langchain_core.prompts import ChatPromptTemplate  # noqa: PLC0415
    from langchain_core.retrievers import BaseRetriever  # noqa: PLC0415
    from langchain_core.runnables import RunnablePassthrough  # noqa: PLC0415
    from langchain_openai import ChatOpenAI  # noqa: PLC0415

    class Shelf(BaseRetriever):
        def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:  # noqa: ANN401
            return [
                Document(id=f"d{place}", page_content=text, metadata={"id": f"d{place}"})
                for place, text in enumerate(DOCUMENTS, start=1)
            ]

    prompt = ChatPromptTemplate.from_messages([("system", "Answer from: {context}"), ("human", "{question}")])
    model = ChatOpenAI(model="ferry-1", base_url=endpoint, api_key="none")  # type: ignore[arg-type]
    chain = {"context": Shelf(), "question": RunnablePassthrough()} | prompt | model | StrOutputParser()
    chain.invoke(QUESTION, config={"metadata": {"session_id": "s-7"}, **config})  # type: ignore[typeddict-item]


def answer_with_openai(endpoint: str) -> None:
    import openai  # noqa: PLC0415

    ask_openai(openai, endpoint)


def ask_openai(openai: Any, endpoint: str) -> None:  # noqa: ANN401  # the module, or a substitute
    client = openai.OpenAI(base_url=endpoint, api_key="none")
    messages: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION}]
    client.chat.completions.create(model="ferry-1", messages=messages)


def answer_with_langfuse(endpoint: str, receiver: str, token: str) -> None:
    """Both by Langfuse's own SDK, which adds the path to an address by itself."""
    os.environ["OTEL_SERVICE_NAME"] = "ferry-bot"
    from langfuse import Langfuse  # noqa: PLC0415
    from langfuse.langchain import CallbackHandler  # noqa: PLC0415

    langfuse = Langfuse(public_key="pk-any", secret_key=token, base_url=receiver.removesuffix("/v1/traces"))
    answer_with_langchain(endpoint, callbacks=[CallbackHandler()], metadata={"langfuse_session_id": "s-7"})
    ask_openai(importlib.import_module("langfuse.openai").openai, endpoint)
    langfuse.shutdown()


def main(instrumentor: str, endpoint: str, receiver: str, token: str) -> None:
    if instrumentor == "langfuse":
        answer_with_langfuse(endpoint, receiver, token)
        return
    provider = make_provider(receiver, token)
    langchain, openai = INSTRUMENTORS[instrumentor]
    watch_langchain = getattr(importlib.import_module(langchain[0]), langchain[1])()
    watch_langchain.instrument(tracer_provider=provider)
    answer_with_langchain(endpoint)
    watch_langchain.uninstrument()
    getattr(importlib.import_module(openai[0]), openai[1])().instrument(tracer_provider=provider)
    answer_with_openai(endpoint)
    provider.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
