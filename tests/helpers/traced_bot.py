"""A bot that is traced by real instrumentors and exports by the real OTLP exporter. A process of its own, because an
instrumentor changes the libraries it watches: `python traced_bot.py INSTRUMENTOR ENDPOINT RECEIVER TOKEN`."""

from __future__ import annotations

import importlib
import sys
import warnings
from typing import Any

warnings.simplefilter("ignore")

INSTRUMENTORS = {
    "openinference": (
        ("openinference.instrumentation.langchain", "LangChainInstrumentor"),
        ("openinference.instrumentation.openai", "OpenAIInstrumentor"),
    ),
    "openllmetry": (
        ("opentelemetry.instrumentation.langchain", "LangchainInstrumentor"),
        ("opentelemetry.instrumentation.openai", "OpenAIInstrumentor"),
    ),
}
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


def answer_with_langchain(endpoint: str) -> None:
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
    chain.invoke(QUESTION, config={"metadata": {"session_id": "s-7"}})


def answer_with_openai(endpoint: str) -> None:
    import openai  # noqa: PLC0415

    client = openai.OpenAI(base_url=endpoint, api_key="none")
    messages: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION}]
    client.chat.completions.create(model="ferry-1", messages=messages)


def main(instrumentor: str, endpoint: str, receiver: str, token: str) -> None:
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
