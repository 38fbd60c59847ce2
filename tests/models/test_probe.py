"""The abilities of an endpoint, found with four requests: kinds of endpoints, and what a run does with each."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest
from endpoint import Asked, Canned, Endpoint, Raw, running_endpoint
from live_runs import make_settings, point_to
from token_replies import list_tokens

from evalhouse.flows.trials.endpoint import JudgeTrial, list_consequences, plan_trials, to_document

KEY = "sk-probe-77c1d2"
ASKED = ("rank", "other")
SLOW = 0.25


def refuse(status: int, message: str, param: str | None = None) -> Raw:
    return Raw(status=status, body={"error": {"message": message, "param": param, "type": "invalid_request_error"}})


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model behind an endpoint: which words of a request it refuses, and what it says."""

    refuses: Mapping[str, Raw] = field(default_factory=dict)
    obeys_schemas: bool = True
    gives_logprobs: bool = True
    says: str | None = None
    busy_s: float = 0.0  # in which the server answers no other request

    def answer(self, asked: Asked) -> Canned:
        time.sleep(self.busy_s)
        body = orjson.dumps(asked.body).decode()
        for word, refusal in self.refuses.items():
            if word in body:
                return refusal
        text = self.says or "{" + asked.texts[-1].partition("{")[2]
        if "json_schema" in body and self.obeys_schemas:
            text = text.replace("maybe", "useful")
        logprobs = {"content": list_tokens(text)} if "logprobs" in asked.body and self.gives_logprobs else None
        choice = {"message": {"role": "assistant", "content": text}, "logprobs": logprobs, "finish_reason": "stop"}
        return Raw(body={"choices": [choice], "usage": {"prompt_tokens": 60, "completion_tokens": 50}})


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of endpoint and what is to be found out: abilities other than `yes`, and words of what a run will do."""

    model: Model = Model()
    options: Mapping[str, Any] = field(default_factory=dict)
    form: str = "ids"
    is_held: bool = True
    cannot: Mapping[str, str] = field(default_factory=dict)
    window: int | None = None
    refused: int = 0
    does: tuple[str, ...] = ()


NO_SCHEMA = refuse(400, "'response_format.type' must be 'text'")
KINDS = {
    "all that OpenAI's protocol has": Kind(
        options={"latency": SLOW}, does=("names its ids, and the endpoint holds the model to it", "window is not known")
    ),
    "vLLM": Kind(
        options={"latency": SLOW, "model_fields": {"max_model_len": 8192}},
        window=8192,
        does=("more than the window holds: what is longer goes out in smaller parts",),
    ),
    "llama.cpp with one slot": Kind(
        model=Model(busy_s=SLOW),
        options={
            "model_fields": {"meta": {"n_ctx": 40_960}},
            "documents": {"/props": {"total_slots": 1, "default_generation_settings": {"n_ctx": 40_960}}},
        },
        cannot={"requests at once": "no"},
        window=40_960,
        does=("answers one after the other", "--concurrency 2 is as quick", "which the window holds"),
    ),
    "Ollama that cuts": Kind(
        model=Model(gives_logprobs=False),
        options={"documents": {"/api/ps": {"models": [{"name": "judge:latest", "context_length": 4096}]}}},
        cannot={"log-probabilities": "no"},
        window=4096,
        does=("with --context-window 4096", "grades are the ratings as the model says them"),
    ),
    "a window for nothing": Kind(
        options={"model_fields": {"context_length": 2048}}, window=2048, cannot={},
        does=("2,048 tokens is too small for the prompts",),
    ),
    "schemas, but none with ids": Kind(
        model=Model(refuses={"prefixItems": refuse(400, "json_schema: unknown keyword prefixItems")}),
        form="schema",
        cannot={"schema that names ids": "no"},
        refused=1,
        does=("the schema of its prompt, and the endpoint holds",),
    ),
    "schemas that are not kept to": Kind(
        model=Model(obeys_schemas=False),
        is_held=False,
        cannot={"schema that names ids": "no", "schema of a prompt": "no"},
        does=("names its ids; what is missing in a reply or wrong is asked for again",),
    ),
    "plain text alone": Kind(
        model=Model(refuses={"response_format": NO_SCHEMA}),
        form="words",
        is_held=False,
        cannot=dict.fromkeys(("schema that names ids", "schema of a prompt", "JSON mode"), "no"),
        refused=5,
        does=("in words alone",),
    ),
    "JSON of any shape": Kind(
        model=Model(refuses={"json_schema": NO_SCHEMA}),
        form="json_object",
        is_held=False,
        cannot=dict.fromkeys(("schema that names ids", "schema of a prompt"), "no"),
        refused=3,
        does=("JSON of any shape, and their words say which",),
    ),
    "no seed and no log-probabilities": Kind(
        model=Model(refuses={'"seed"': refuse(422, "seed: extra fields not permitted"),
                             '"logprobs"': refuse(400, "logprobs is not supported", "logprobs")}),
        cannot={"seed": "no", "log-probabilities": "no"},
        refused=2,
        does=("cannot be repeated exactly", "grades are the ratings as the model says them"),
    ),
    "a model that writes no JSON": Kind(
        model=Model(says="Sure! Here you are."),
        is_held=False,
        cannot=dict.fromkeys(("schema that names ids", "schema of a prompt", "plain text"), "no"),
    ),
}  # fmt: skip


def try_endpoint(endpoint: Endpoint, **settings: Any) -> JudgeTrial:  # noqa: ANN401  # fields of RunSettings
    point_to(endpoint.base_url, KEY)
    (tried,) = plan_trials(make_settings(**settings)).run()
    return tried


@pytest.mark.parametrize("name", KINDS)
def test_kinds_of_endpoints(name: str) -> None:
    kind = KINDS[name]
    answer: Callable[[Asked], Canned] = kind.model.answer
    with running_endpoint(script=dict.fromkeys(ASKED, answer), keep_bodies=True, **kind.options) as endpoint:
        tried = try_endpoint(endpoint)
        bodies = endpoint.stats.bodies
    trial = tried.trial
    assert trial.problem is None
    found = {seen.ability: seen.status for seen in trial.seen if seen.status != "yes"}
    if "latency" not in kind.options and not kind.model.busy_s:
        found.pop("requests at once", None)  # unknown after so quick an answer
    assert found == kind.cannot
    assert (trial.form, trial.is_held, tried.serving.window) == (kind.form, kind.is_held, kind.window)
    assert (trial.n_answered, trial.n_refused, len(bodies)) == (4, kind.refused, 4 + kind.refused)
    assert max(len(orjson.dumps(body["messages"])) for body in bodies) < 500, "they are small"
    therefore = "\n".join(list_consequences(tried))
    assert [words for words in kind.does if words not in therefore] == [], therefore
    orjson.dumps(to_document([tried]))


@pytest.mark.parametrize(("options", "expected", "n_sent"), [
    ({"faults": {"hang": 1.0}}, "no answer within 0.3 s", 1),
    ({"expected_key": "another"}, "OPENAI_API_KEY", 1),
    ({"models": ("other",)}, "`judge` does not exist", 1),
    ({"script": dict.fromkeys(ASKED, [refuse(400, "Bad request")] * 4)}, "Bad request", 1),
    ({"script": dict.fromkeys(ASKED, lambda _: refuse(400, "seed: not permitted"))}, "seed: not permitted", 1),
])  # fmt: skip
def test_failed_probe_reports_why_and_asks_no_more(options: dict[str, Any], expected: str, n_sent: int) -> None:
    with running_endpoint(**options) as endpoint:
        tried = try_endpoint(endpoint, timeout_s=0.3)
        assert endpoint.stats.requests == {"/v1/chat/completions": n_sent}
    assert expected in str(tried.trial.problem)
    assert KEY not in str(to_document([tried]))
    assert list_consequences(tried) == []


def test_a_model_that_comes_from_a_factory_is_asked_as_a_run_asks_it() -> None:
    with running_endpoint(script=dict.fromkeys(ASKED, Model().answer), keep_bodies=True) as endpoint:
        tried = try_endpoint(endpoint, judge="judge_factories:make_openai")
        assert (tried.trial.problem, tried.trial.n_answered) == (None, 4)
        status = {seen.ability: seen.status for seen in tried.trial.seen}
    assert (status["schema that names ids"], status["schema of a prompt"]) == ("not sent", "yes")


def test_each_judge_that_is_named_is_tried_and_what_is_built_in_is_not() -> None:
    with running_endpoint() as endpoint:
        point_to(endpoint.base_url, KEY)
        plan = plan_trials(make_settings(judge="lexical,rank=openai:a,grade=openai:b"))
        assert plan.estimate()["requests"] == 8
        assert [tried.settings.judge for tried in plan.run()] == ["openai:a", "openai:b"]
    assert "is built in or a classifier" in plan_trials(make_settings(judge="lexical")).describe()
