"""A live run to try the judge's call path on: real warehouse, real journal, real HTTP, and no Prefect.

`lay_out_run` makes the tools of a run as the flow would, and `judge_samples` takes samples through all steps. What came
of it is read from the samples' rows and from `llm_calls` with `read_calls`. A `ScriptedJudge` is a judge whose replies
a test writes down; it goes through the same record and limits as any other.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from kept_open import catch_up, put_off
from warehouse_runs import is_as_laid, lay_warehouse

from evalhouse.flows.preparing.live_run import make_limit
from evalhouse.prompts import load_prompts
from evalhouse.tasks.asking.asker import Asker
from evalhouse.tasks.asking.embeddings import AskedEmbedder, HashingEmbedder
from evalhouse.tasks.asking.record import CallRecord
from evalhouse.tasks.asking.usage import Price, estimate_items
from evalhouse.tasks.asking.verdicts import gather_all
from evalhouse.tasks.attribute import attribute_statements
from evalhouse.tasks.classify import classify_statements
from evalhouse.tasks.extract import extract_statements
from evalhouse.tasks.fused import judge_together
from evalhouse.tasks.judge.protocol import (
    Judge,
    ModelReply,
    ModelRequest,
    Question,
    hash_canonical,
    plain_data,
    require_prompt,
)
from evalhouse.tasks.models.chat import make_openai_judge
from evalhouse.tasks.models.openai_api import make_embedding_model
from evalhouse.tasks.pipeline.live_run import Clients, LiveRun, SampleWork, make_work
from evalhouse.tasks.rank import rank_contexts
from evalhouse.tasks.settings.run import RunSettings
from evalhouse.tasks.similarity import compare_meaning
from evalhouse.warehouse.metric_files import load_metrics, plan_run
from evalhouse.warehouse.rows.samples import StoredSample
from evalhouse.warehouse.store import Warehouse

PROMPTS = load_prompts()
FREE = Price(input_usd=0.0, output_usd=0.0)
SAMPLE_STEPS = (extract_statements, classify_statements, attribute_statements, rank_contexts, compare_meaning)
FUSED_STEPS = (extract_statements, judge_together, compare_meaning)

Says = Callable[[Question], str | Exception]


class ScriptedJudge:
    """Says what `says` makes of a question: a text, or an error to raise. `asked` are the questions that were sent."""

    name = "scripted"
    model = "scripted-1"
    endpoint = None
    tasks = None

    def __init__(self, says: Says, *, latency_s: float = 0.0) -> None:
        self.says = says
        self.latency_s = latency_s
        self.asked: list[Question] = []
        self._questions: dict[str, Question] = {}

    def prepare(self, question: Question) -> ModelRequest:
        name, data = require_prompt(question).name, plain_data(question.data)
        request_hash = hash_canonical([name, data, question.vote, question.number, question.only])
        self._questions[request_hash] = question
        return ModelRequest(request_hash=request_hash, payload={"model": self.model, "note": question.note})

    async def reply(self, request: ModelRequest) -> ModelReply:
        question = self._questions[request.request_hash]
        self.asked.append(question)
        await asyncio.sleep(self.latency_s)
        reply = self.says(question)
        if isinstance(reply, Exception):
            raise reply
        return ModelReply(text=reply, prompt_tokens=100, completion_tokens=10)

    async def close(self) -> None:
        pass


def make_sample(number: int = 1, **changes: Any) -> StoredSample:  # noqa: ANN401  # fields of StoredSample
    """A sample with two statements in the answer and two in the ground truth, of which one is shared."""
    sample = StoredSample(
        ordinal=number,
        sample_id=f"s{number}",
        input_hash=f"h{number}",
        question=f"When was lighthouse {number} built, and by whom?",
        answer=f"Lighthouse {number} was built in 1911. The architect was Ode Varn{number}.",
        ground_truth=f"Lighthouse {number} was built in 1911. The builder was Mira Solveng{number}.",
        contexts=[
            f"Lighthouse {number} was built in 1911 on the northern cape.",
            f"The builder was Mira Solveng{number}, an engineer.",
            "Fish soup is served on Fridays.",
        ],
        context_ids=None,
        reference_context_ids=None,
    )
    return replace(sample, **changes)


def make_settings(**changes: Any) -> RunSettings:  # noqa: ANN401  # fields of RunSettings
    return RunSettings(**{"judge": "openai:judge", "timeout_s": 5.0, **changes})


def point_to(base_url: str, key: str = "sk-test-0123456789") -> None:
    """Set the environment that openai's clients read; conftest's fixtures put it back."""
    os.environ["OPENAI_BASE_URL"] = base_url
    os.environ["OPENAI_API_KEY"] = key


def open_warehouse(folder: Path) -> Warehouse:
    """The warehouse at `folder`/w.duckdb, with all its tables."""
    folder.mkdir(exist_ok=True)
    path = folder / "w.duckdb"
    if not path.exists():
        return lay_warehouse(path)
    catch_up(path)
    return Warehouse(str(path))


@asynccontextmanager
async def lay_out_run(
    folder: Path,
    settings: RunSettings | None = None,
    *,
    judge: Judge | None = None,
    run_id: str = "run-1",
    price: Price | None = None,
    metrics: Sequence[str] = (),
) -> AsyncIterator[LiveRun]:
    """A live run over `folder`/w.duckdb; at the end everything is closed, and in the warehouse once it is looked at."""
    settings = settings or make_settings()
    warehouse = open_warehouse(folder)
    plan = plan_run(metrics, load_metrics())
    record = _open_record(warehouse, run_id, fresh=settings.fresh)
    judge = judge or make_openai_judge(settings.judge, settings.judge.partition(":")[2], settings)
    asker = Asker(
        judge=judge,
        record=record,
        limit=make_limit(settings, judge),
        window=settings.context_window,
        attempts=settings.attempts,
        price=price or FREE,
        budget_usd=settings.budget_usd,
    )
    embedder: Any = HashingEmbedder()
    if settings.embeddings != "hashing":
        model = make_embedding_model(settings.embeddings)
        limit = make_limit(settings, model, beside=[asker])
        embedder = AskedEmbedder(replace(asker, judge=model, limit=limit))
    live_run = LiveRun(
        run_id=run_id,
        settings=settings,
        warehouse=warehouse,
        prompts=PROMPTS,
        metrics=plan.metrics,
        steps=plan.steps,
        open_clients=lambda: Clients(asker=asker, embedder=embedder),
    )
    try:
        yield live_run
    finally:
        await live_run.close()
        await asyncio.to_thread(put_off, record._mover, warehouse.location.path)


def _open_record(warehouse: Warehouse, run_id: str, *, fresh: bool) -> CallRecord:
    """A record that knows without opening it that there is nothing in a warehouse without any rows."""
    record = CallRecord(warehouse, run_id, fresh=fresh)
    read, path = record._finder._read_keys, warehouse.location.path
    none = np.array([], dtype=np.uint64)
    record._finder._read_keys = lambda: none if is_as_laid(path) else read()
    return record


async def judge_samples(live_run: LiveRun, samples: Sequence[StoredSample]) -> list[SampleWork]:
    """Take samples through all steps side by side, and return them with their rows."""
    works = [make_work(sample) for sample in samples]
    steps = FUSED_STEPS if live_run.settings.plan == "fused" else SAMPLE_STEPS
    await gather_all([step(live_run, work) for step in steps for work in works])
    return works


def read_outcomes(work: SampleWork) -> dict[str, str | None]:
    """Return how each step ended: its reason, or None when the verdicts are there."""
    return {str(row["step"]): row["reason"] for row in work.rows["outcomes"]}  # type: ignore[misc]


def read_detail(work: SampleWork, step: str) -> str:
    return next(str(row["detail"]) for row in work.rows["outcomes"] if row["step"] == step)


def read_labels(work: SampleWork) -> dict[str, str]:
    return {str(row["statement_id"]): str(row["label"]) for row in work.rows["classifications"]}


def read_ranks(work: SampleWork) -> dict[str, list[int]]:
    return {str(row["statement_id"]): row["context_ranks"] for row in work.rows["attributions"]}  # type: ignore[misc]


def read_joint_ranks(work: SampleWork) -> dict[str, list[int]]:
    return {str(row["statement_id"]): row["joint_ranks"] for row in work.rows["attributions"]}  # type: ignore[misc]


def read_useful(work: SampleWork) -> dict[int, bool]:
    return {row["context_rank"]: row["useful"] for row in work.rows["context_verdicts"]}  # type: ignore[misc]


def read_calls(folder: Path) -> list[dict[str, Any]]:
    """All rows of `llm_calls`, in the order in which they were asked."""
    return Warehouse(str(folder / "w.duckdb")).read_rows("select * from llm_calls order by started_at, attempts")


def say_verdicts(*verdicts: Mapping[str, object]) -> str:
    return orjson.dumps({"verdicts": [{"reason": "", **verdict} for verdict in verdicts]}).decode()


def say_useful(useful: Collection[str], reason: str = "", ids: Collection[str] = ("C1", "C2", "C3")) -> str:
    return say_verdicts(
        *({"id": item, "label": "useful" if item in useful else "not_useful", "reason": reason} for item in ids)
    )


def say_by_vote(*written: str | Exception) -> Says:
    return lambda question: written[question.vote - 1]


def say_good(question: Question) -> str:
    """A usable reply for all items of any question."""
    ids = {name: [item.id for item in value] for name, value in question.data.items() if not isinstance(value, str)}
    assert question.prompt is not None
    match question.prompt.name:
        case "extract":
            return orjson.dumps({"statements": str(question.data["text"]).split(". ")}).decode()
        case "extract_both":
            texts = {name: str(question.data[name]) for name in ("answer", "ground_truth")}
            return orjson.dumps({name: text.split(". ") for name, text in texts.items()}).decode()
        case "rank":
            return say_verdicts(*({"id": item, "label": "useful"} for item in ids["contexts"]))
        case "fused":
            return say_rows(question.only or ask_fully(question), support=ids["contexts"][0])
        case "attribute":
            statements = ids["answer_statements"] + ids["ground_truth_statements"]
            return say_verdicts(*({"id": item, "contexts": ids["contexts"][:1]} for item in statements))
        case _:
            sides = ids["answer_statements"] + ids["ground_truth_statements"]
            return say_verdicts(*({"id": item, "label": "TP"} for item in sides))


def say_rows(named: Sequence[str], *, support: str) -> str:
    """The rows of a `fused` reply for verdicts of these names, all of them in favour."""
    rows = []
    for item in dict.fromkeys(name.split()[-1] for name in named):
        label = "useful" if item[0] == "C" else "TP"
        evidence = "A1" if item[0] == "G" else "G1"
        cells = [evidence, label] if item in named else ["-", "-"]
        supports = [support if f"supports {item}" in named else "-"] if item[0] != "C" else []
        rows.append([item, *cells, *supports])
    return orjson.dumps({"verdicts": rows}).decode()


def ask_fully(question: Question) -> list[str]:
    """The names of all verdicts that a `fused` request asks for where it names none."""
    ids = [item.id for value in question.data.values() if not isinstance(value, str) for item in value]
    return [*ids, *(f"supports {item}" for item in ids if item[0] != "C")]


def read_ids(question: Question, block: str) -> list[str]:
    """Return the ids of the items in a block."""
    value = question.data[block]
    assert not isinstance(value, str)
    return [item.id for item in value]


def measure(question: Question) -> int:
    """Tokens of the lists of a request."""
    return sum(estimate_items(value) for value in question.data.values() if not isinstance(value, str))


def asked_of(judge: ScriptedJudge, step: str) -> list[Question]:
    return [question for question in judge.asked if question.step.startswith(step)]


def find_odd(question: Question, odd: Mapping[str, Says]) -> Says:
    """Return the reply to a question: by its step's name or by the part of it that its prompt is called."""
    return next((says for name, says in odd.items() if question.step.startswith(name)), say_good)


async def judge_one(
    folder: Path,
    sample: StoredSample | None = None,
    *,
    judge: Judge | None = None,
    run_id: str = "run-1",
    metrics: Sequence[str] = (),
    **settings: Any,  # noqa: ANN401  # fields of RunSettings
) -> SampleWork:
    """Take one sample through all steps, by this judge or by the endpoint."""
    async with lay_out_run(folder, make_settings(**settings), judge=judge, run_id=run_id, metrics=metrics) as live_run:
        (work,) = await judge_samples(live_run, [sample or make_sample()])
    return work


async def judge_with(folder: Path, odd: Mapping[str, Says], **settings: Any) -> tuple[ScriptedJudge, SampleWork]:  # noqa: ANN401
    """A good judge but for some steps, named as `find_odd` says."""
    judge = ScriptedJudge(lambda question: find_odd(question, odd)(question))
    return judge, await judge_one(folder, judge=judge, **settings)
