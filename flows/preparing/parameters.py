"""The parameters of the flow `evaluate`: what a form in Prefect's UI, a deployment and a call from Python give.

They are settings of a run by their names, those that make sense without a suite. What is not given comes from the
`EVALHOUSE_*` variables of the process that runs the flow, then from the defaults, as for `evalhouse run`. Prefect
stores parameters in plain text, so none of them takes a secret: keys are in the environment of that process.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from evalhouse.flows.preparing.settings import Resolved, resolve_settings
from evalhouse.tasks.settings.run import Effort, RunSettings
from evalhouse.warehouse.metric_files import load_metrics

Metric = Annotated[str, Field(json_schema_extra={"enum": sorted(load_metrics())})]
"""A metric that evalhouse brings; a form offers them as choices."""


class EvaluateParameters(BaseModel):
    """What is evaluated, and how. Unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    dataset: str = Field(
        default="sample",
        description="a file or table that the worker can read, or `sample`, the dataset that ships with evalhouse",
    )
    judge: str | None = Field(
        default=None,
        description="lexical, openai:MODEL, PROVIDER:MODEL, local:MODEL, or module:factory; `J,classify=K` asks K in "
        "one step",
        examples=["lexical", "openai:gpt-4.1-mini"],
    )
    metrics: tuple[Metric, ...] = Field(default=(), description="what is scored; none given: the usual metrics")
    own_metrics: tuple[str, ...] = Field(default=(), description="metrics of your own to be scored, from metric_files")
    embeddings: str | None = Field(default=None, description="hashing, openai:MODEL, or module:factory")
    language: Literal["en", "zh"] | None = Field(default=None, description="language of the prompts")
    limit: int | None = Field(default=None, ge=1, description="judge only the first N samples")
    label: str | None = Field(default=None, description="a name for the run")
    href: str | None = Field(default=None, description="a link to what was evaluated: a commit, a build")
    tags: tuple[str, ...] = Field(default=(), description="tags of the run and of its flow and task runs")
    plan: Literal["separate", "fused"] | None = Field(
        default=None, description="whether classify, attribute and rank ask by themselves or in one request"
    )
    votes: int | None = Field(default=None, ge=1, le=99, description="votes on each verdict, an odd number")
    reasoning_effort: Effort | None = Field(default=None, description="how long a model thinks before it replies")
    contexts_role: Literal["authoritative", "supplementary"] | None = Field(
        default=None, description="whether contexts hold the truth or add to it"
    )
    noise_share: float | None = Field(
        default=None, ge=0, le=1, description="share of unchanged samples that are judged again to measure noise"
    )
    budget_usd: float | None = Field(default=None, gt=0, description="dollars that the run may spend")
    concurrency: int | None = Field(default=None, ge=1, le=4096, description="requests in flight at once")
    rpm: int | None = Field(default=None, ge=1, description="requests per minute")
    tpm: int | None = Field(default=None, ge=1, description="tokens per minute")
    timeout_s: float | None = Field(default=None, gt=0, description="seconds one request may take")
    run_timeout_s: float | None = Field(default=None, gt=0, description="seconds the run may take; it can be resumed")
    task_timeout_s: float | None = Field(default=None, gt=0, description="seconds one step may take for a shard")
    attempts: int | None = Field(default=None, ge=1, le=50, description="times one question is asked at most")
    fresh: bool | None = Field(default=None, description="ask again although a reply is on record")
    batch: bool | None = Field(default=None, description="send requests through the provider's batch API")
    pool: str | None = Field(default=None, description="Prefect work pool whose workers judge the samples")
    mapping: dict[str, str] = Field(default={}, description="our columns by name, and those they are read from")
    prompts: str | None = Field(default=None, description="folder whose prompt files override ours")
    metric_files: str | None = Field(default=None, description="folder with metric SQL files of your own")
    prices: str | None = Field(default=None, description="file with prices of your own")
    warehouse: str | None = Field(
        default=None, description="URL of the warehouse, in which a password has no place, or path of a DuckDB file"
    )
    run_id: str | None = Field(
        default=None, description="a run to go on with, which keeps its settings; none given: a new run"
    )

    def resolve(self) -> Resolved:
        """The settings that these make with the environment and the defaults; raises SettingsError."""
        given: dict[str, Any] = self.model_dump(exclude_none=True, exclude={"run_id", "own_metrics"})
        return resolve_settings({**given, "metrics": (*self.metrics, *self.own_metrics)})


def describe_settings(settings: RunSettings, *, run_id: str) -> EvaluateParameters:
    """Return the parameters of a run that has its settings already, but for defaults, as Prefect shows them."""
    built_in, values = load_metrics(), {}
    for name in EvaluateParameters.model_fields.keys() & RunSettings.model_fields.keys():
        value = getattr(settings, name)
        if name in ("dataset", "judge") or value != RunSettings.model_fields[name].get_default():
            values[name] = value
    values["metrics"] = tuple(name for name in settings.metrics if name in built_in)
    own_metrics = tuple(name for name in settings.metrics if name not in built_in)
    return EvaluateParameters(**values, own_metrics=own_metrics, run_id=run_id)
