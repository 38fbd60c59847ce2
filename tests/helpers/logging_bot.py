"""A bot that captures content as events: its spans by one exporter of OpenTelemetry's SDK, the messages by another.

A separate process, as an application is: `python logging_bot.py RECEIVER TOKEN`.
"""

from __future__ import annotations

import sys
from typing import Any

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from trace_files import ANSWER, QUESTION

ASKED = [{"role": "user", "parts": [{"type": "text", "content": QUESTION}]}]
REPLIED = [{"role": "assistant", "parts": [{"type": "text", "content": ANSWER}], "finish_reason": "stop"}]


def main(receiver: str, token: str) -> None:
    resource = Resource.create({"service.name": "ferry-bot"})
    same: dict[str, Any] = {"headers": {"authorization": f"Bearer {token}"}, "compression": Compression.Gzip}
    traces, logs = TracerProvider(resource=resource), LoggerProvider(resource=resource)
    traces.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=f"{receiver}/v1/traces", **same)))
    logs.add_log_record_processor(BatchLogRecordProcessor(OTLPLogExporter(endpoint=f"{receiver}/v1/logs", **same)))
    tracer, logger = traces.get_tracer("bot"), logs.get_logger("bot")

    def log(name: str, **beside: Any) -> None:  # noqa: ANN401  # fields of a LogRecord
        logger.emit(LogRecord(event_name=name, severity_number=SeverityNumber.INFO, **beside))

    attributes = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m-1"}
    with tracer.start_as_current_span("chat m-1", attributes=attributes):
        log("gen_ai.user.message", body={"content": QUESTION})
        log("gen_ai.choice", body={"index": 0, "message": {"role": "assistant", "content": ANSWER}})
        log("", body="an ordinary line of the application")
    with tracer.start_as_current_span("chat m-1", attributes=attributes):
        messages = {"gen_ai.input.messages": ASKED, "gen_ai.output.messages": REPLIED}
        log("gen_ai.client.inference.operation.details", attributes={**attributes, **messages})
        log("gen_ai.evaluation.result", attributes={"gen_ai.evaluation.name": "relevance"})
    log("gen_ai.user.message", body={"content": "of no span"})
    logs.shutdown()
    traces.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
