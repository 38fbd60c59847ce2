"""The cost of a night, in tokens and at list prices: evalhouse by either plan, at once or as a batch, beside ragas.

The same samples of five contexts are judged for correctness, recall, precision and faithfulness against the local
endpoint, on a first night and on one in which some of the answers have changed. Tokens are counted by o200k_base, the
vocabulary of OpenAI's models since GPT-4o: of the messages, of the reply's schema as OpenAI's service gets it, and of
the replies. Every evaluator gets a reply of the shape it asks for, as many statements as the
texts have sentences, and the reasons of the worked examples in the very request, one after the other: as long as
these are is what models write. In the rows of the fused plan a verdict in favour has one id as its evidence and, dull
as the endpoint's rule is, all contexts as its support; words stand where a verdict goes against something, here for 3
of the 25 of a sample. Left out is what a provider adds to messages.

`cached` is what the endpoint reports as OpenAI's service would: the beginning that a prompt shares with an earlier one,
from 1,024 tokens on in steps of 128. ragas is asked without its optional cache of replies, as `evaluate` does unless it
is given one: with it a later night would send the changed rows alone, like ours.

    pip install rs-bpe        # brings the vocabulary, which tiktoken would fetch from the network
    python -m venv ragas && ragas/bin/pip install ragas 'langchain-community<0.4' langchain-openai
    python tests/benchmarks/price.py --ragas ragas/bin/python [--samples 100 --changed 0.05 --model gpt-4.1-mini]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
sys.path[:0] = [str(FOLDER), str(FOLDER.parent / "helpers")]

from call_path import build_samples, list_rows  # noqa: E402
from endpoint import Asked, Raw, running_endpoint  # noqa: E402
from endpoint_replies import Choice, build_completion, compose_reply  # noqa: E402
from live_runs import judge_samples, lay_out_run, make_settings, point_to  # noqa: E402
from rs_bpe.bpe import openai  # noqa: E402

from evalhouse.prompts import list_row_reasons, load_prompts, word_row  # noqa: E402
from evalhouse.tasks.asking.usage import find_price, load_batch_rates, load_prices  # noqa: E402
from evalhouse.warehouse.rows.samples import StoredSample  # noqa: E402

METRICS = ("answer_correctness", "context_recall", "context_precision", "faithfulness")
REASON = re.compile(r'\\?"reason\\?":\s*\\?"((?:[^"\\]|\\[^"])*)')
STATEMENT = "The tower of lighthouse 12 was made in 1812."
N_STATEMENTS = 5  # of either text of these samples, of which four are the other's too
LEAST_CACHED, CACHED_STEP = 1024, 128
OURS = ("extract", "extract_both", "classify", "attribute", "rank", "fused")
_encode: Callable[[str], list[int]] = openai.o200k_base().encode


@dataclass(kw_only=True)
class Bill:
    """Tokens of some requests."""

    requests: int = 0
    prompt: int = 0
    cached: int = 0
    completion: int = 0

    def add(self, other: Bill) -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    def price(self, model: str, *, cache: bool = False) -> float:
        """Dollars at list prices."""
        price = find_price(load_prices(None), model)
        assert price is not None, f"no price of {model} is known"
        cost = price.cost_usd(self.prompt, self.completion, self.cached if cache else 0)
        assert cost is not None
        return cost


@dataclass(kw_only=True)
class Meter:
    """Answers every request and counts it, by what it asks."""

    bills: dict[str, Bill] = field(default_factory=lambda: defaultdict(Bill))
    beginnings: set[tuple[int, ...]] = field(default_factory=set)
    schemas: dict[str, int] = field(
        default_factory=lambda: {name: len(_encode(json.dumps(load_prompts()[name].reply_schema))) for name in OURS}
    )

    def answer(self, asked: Asked) -> Raw:
        # Not quite the examples', for what a model copied is asked again. A reason of one sign shows the shape.
        found = [f"{reason}." for text in asked.texts for reason in _list_reasons(text) if len(reason) > 1]
        shown = cycle(found or [""])
        reply = compose_reply(asked) if asked.kind in OURS else _answer_stranger(asked)
        reply = _put_in_rows(reply, shown) if asked.kind == "fused" else _put_in_reasons(reply, shown)
        text_of_reply = json.dumps(reply, ensure_ascii=False, separators=(", ", ": "))
        tokens = [token for text in asked.texts for token in _encode(text)]
        schema = self.schemas[asked.kind] if asked.kind in OURS else _count_schema(asked)
        cached = self._find_cached(tokens)
        bill = Bill(requests=1, prompt=len(tokens) + schema, cached=cached, completion=len(_encode(text_of_reply)))
        self.bills[asked.kind].add(bill)
        return Raw(body=build_completion(asked, Choice(content=text_of_reply), 1, cached))

    def _find_cached(self, tokens: Sequence[int]) -> int:
        beginnings = [(size, hash(tuple(tokens[:size]))) for size in range(LEAST_CACHED, len(tokens) + 1, CACHED_STEP)]
        cached = max((beginning[0] for beginning in beginnings if beginning in self.beginnings), default=0)
        self.beginnings.update(beginnings)
        return cached

    def take(self) -> dict[str, Bill]:
        """Return the counts since the last call."""
        taken, self.bills = dict(self.bills), defaultdict(Bill)
        return taken


def _list_reasons(text: str) -> list[str]:
    """The reasons in a message, which may be a worked example's reply in objects or in rows."""
    return list_row_reasons(json.loads(text)) if text.startswith('{"verdicts": [[') else REASON.findall(text)


def _put_in_reasons(reply: Any, shown: Iterator[str]) -> Any:  # noqa: ANN401  # any JSON value
    if isinstance(reply, dict):
        return {name: next(shown) if name == "reason" else _put_in_reasons(part, shown) for name, part in reply.items()}
    return [_put_in_reasons(item, shown) for item in reply] if isinstance(reply, list) else reply


def _put_in_rows(reply: Any, shown: Iterator[str]) -> dict[str, Any]:  # noqa: ANN401  # a JSON object
    """The rows with words for what speaks against the answer or a context, and for nothing else."""
    in_favour = ("TP", "useful")
    return {"verdicts": [word_row(row, in_favour=row[2] in in_favour, reasons=shown) for row in reply["verdicts"]]}


def _read_schema(asked: Asked) -> dict[str, Any]:
    """The schema of the reply, which ragas writes into the prompt itself."""
    sent: Any = (asked.body.get("response_format") or {}).get("json_schema") or {}
    if "schema" in sent:
        return dict(sent["schema"])
    text = next(text for text in asked.texts if "JSON Schema:" in text)
    schema: dict[str, Any] = json.JSONDecoder().raw_decode(text.rpartition("JSON Schema:")[2].lstrip("* \n"))[0]
    return schema


def _count_schema(asked: Asked) -> int:
    """Tokens of a schema that was sent beside the messages; one within them is counted there."""
    sent: Any = asked.body.get("response_format")
    return len(_encode(json.dumps(sent))) if sent else 0


def _answer_stranger(asked: Asked) -> dict[str, Any]:
    """Return the reply that ragas asks for: statements of a text, verdicts on them, or on one context."""
    properties = _read_schema(asked)["properties"]
    verdict = {"statement": STATEMENT, "reason": ""}
    if "TP" in properties:
        return {"TP": [verdict] * (N_STATEMENTS - 1), "FP": [verdict], "FN": [verdict]}
    if "classifications" in properties:
        return {"classifications": [verdict | {"attributed": 1}] * N_STATEMENTS}
    if "statements" in properties:
        of_texts = properties["statements"]["items"].get("type") == "string"
        return {"statements": [STATEMENT if of_texts else verdict | {"verdict": 1}] * N_STATEMENTS}
    assert properties.keys() == {"reason", "verdict"}, f"nothing is known of replies with {list(properties)}"
    return {"reason": "", "verdict": 1}


def change_answers(samples: Sequence[StoredSample], share: float) -> list[StoredSample]:
    """The samples with another fourth sentence in the answers of some."""
    step = round(1 / share)
    return [
        replace(sample, answer=f"{sample.answer} It was painted in {1900 + sample.ordinal}.", input_hash="changed")
        if sample.ordinal % step == 0
        else sample
        for sample in samples
    ]


def judge_nights(meter: Meter, plan: str, nights: Iterable[Sequence[StoredSample]]) -> list[dict[str, Bill]]:
    """Return the requests of evalhouse on each of these nights, with the warehouse of the nights before."""

    async def judge(folder: Path, number: int, samples: Sequence[StoredSample]) -> None:
        settings = make_settings(plan=plan, judge="openai:judge", timeout_s=120.0)
        async with lay_out_run(folder, settings, run_id=f"night-{number}", metrics=METRICS) as live_run:
            works = await judge_samples(live_run, samples)
        assert not any(row["reason"] for work in works for row in work.rows["outcomes"])

    bills = []
    with tempfile.TemporaryDirectory() as folder:
        for number, samples in enumerate(nights):
            asyncio.run(judge(Path(folder), number, samples))
            bills.append(meter.take())
    return bills


def judge_by_ragas(meter: Meter, python: str, url: str, count: int) -> dict[str, Bill]:
    """Return the requests of ragas, which are the same on every night."""
    with tempfile.TemporaryDirectory() as folder:
        samples = Path(folder) / "samples.json"
        samples.write_text(json.dumps(list_rows(count)), encoding="utf-8")
        environment = os.environ | {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "none", "RAGAS_DO_NOT_TRACK": "true"}
        command = [os.path.abspath(python), str(FOLDER / "peer_ragas.py"), str(samples), "16"]
        done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=True)
    lost = json.loads(done.stdout.splitlines()[-1])["lost"]
    assert lost == 0, f"ragas has no score {lost} times"
    return meter.take()


def add_up(bills: dict[str, Bill]) -> Bill:
    whole = Bill()
    for bill in bills.values():
        whole.add(bill)
    return whole


def print_line(name: str, bill: Bill, model: str, beside: Bill, *, rate: float = 1.0, samples: int) -> None:
    dollars, of_ragas = bill.price(model) * rate, beside.price(model)
    cached = bill.price(model, cache=True) * rate
    print(
        f"| {name} | {bill.requests / samples:.2f} | {bill.prompt / samples:,.0f} | {bill.completion / samples:,.0f} | "
        f"{1000 * dollars / samples:.3f} | {dollars / of_ragas:.3f} | "
        f"{cached / beside.price(model, cache=True):.3f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="What a night costs, beside ragas.")
    parser.add_argument("--ragas", metavar="PYTHON", required=True, help="interpreter of an environment with ragas")
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--changed", type=float, default=0.05, help="share of answers that changed on the later night")
    parser.add_argument("--model", default="gpt-4.1-mini", help="whose list price counts")
    options = parser.parse_args()
    samples = build_samples(options.samples)
    nights = (samples, change_answers(samples, options.changed))
    meter, rate = Meter(), load_batch_rates(None)["openai"]
    with running_endpoint() as endpoint:
        endpoint.configure(script=dict.fromkeys((*OURS, "other"), meter.answer))
        point_to(endpoint.base_url)
        beside = add_up(judge_by_ragas(meter, options.ragas, endpoint.base_url, options.samples))
        by_plan = {plan: judge_nights(meter, plan, nights) for plan in ("separate", "fused")}
    print(f"{options.samples} samples, {options.model} at list price, {options.changed:.0%} of answers changed later")
    print("| | requests a sample | tokens in | tokens out | $ for 1,000 | of ragas' price | both with a cache |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    print_line("ragas, any night", beside, options.model, beside, samples=options.samples)
    for night, name in enumerate(("first night", "later night")):
        for plan, bills in by_plan.items():
            whole = add_up(bills[night])
            print_line(f"{name}, {plan}", whole, options.model, beside, samples=options.samples)
            print_line(f"{name}, {plan}, batch", whole, options.model, beside, rate=rate, samples=options.samples)
    print("\n| asked on the first night | requests | tokens in | tokens out |\n| --- | --- | --- | --- |")
    for plan, bills in by_plan.items():
        for kind, bill in bills[0].items():
            each = (bill.prompt / bill.requests, bill.completion / bill.requests)
            print(f"| {plan}: {kind} | {bill.requests:,} | {each[0]:,.0f} | {each[1]:,.0f} |")


if __name__ == "__main__":
    main()
