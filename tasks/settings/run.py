"""The settings of one run: strict, typed, stored whole in `runs.config`.

Secrets are no part of it: they come from the environment when a model is made and are stored nowhere.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from evalhouse.tasks.settings.suite import Notify, SuiteGate
from evalhouse.tasks.settings.target import TargetSettings

Share = Annotated[float, Field(ge=0)]


class RunSettings(BaseModel):
    """What a run is made with. Unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    dataset: str = "sample"
    mapping: dict[str, str] = {}
    limit: int | None = Field(default=None, ge=1, description="judge only the first N samples")
    judge: str = "lexical"
    embeddings: str = "hashing"
    language: str = "en"
    prompts: str | None = Field(default=None, description="folder whose prompt files override ours")
    metrics: tuple[str, ...] = ()
    metric_files: str | None = Field(default=None, description="folder with metric SQL files of your own")
    metric_settings: dict[str, dict[str, float]] = {}
    suite: str | None = None
    suite_hash: str | None = None
    target: TargetSettings | None = Field(default=None, description="the application that is asked for answers")
    responses: str | None = Field(default=None, description="run whose responses are judged, instead of asking again")
    only_affected: bool = Field(
        default=False, description="ask the target only where the last contexts cite a changed document"
    )
    noise_share: float = Field(
        default=0.0, ge=0, le=1, description="share of unchanged samples that are judged again to measure noise"
    )
    gate: SuiteGate | None = Field(default=None, description="limits that the run of a suite has to keep")
    notify: Notify | None = Field(default=None, description="whom the run of a suite tells how it ended")
    label: str | None = None
    href: str | None = None
    tags: tuple[str, ...] = ()
    concurrency: int = Field(default=16, ge=1, le=4096, description="requests in flight at once")
    rpm: int | None = Field(default=None, ge=1, description="requests per minute")
    tpm: int | None = Field(default=None, ge=1, description="tokens per minute, of requests and replies together")
    budget_usd: float | None = Field(default=None, gt=0)
    prices: str | None = Field(default=None, description="file with prices of your own")
    timeout_s: float = Field(default=60.0, gt=0, description="seconds one request may take")
    attempts: int = Field(default=5, ge=1, le=50, description="times one question is asked before it is given up")
    temperature: float | None = Field(default=0.0, ge=0, le=2, description="None sends no temperature at all")
    votes: int = Field(
        default=1, ge=1, le=99, description="times classify, attribute and rank are asked; the majority counts"
    )
    max_tokens: int | None = Field(default=None, ge=1)
    request_tokens: int = Field(default=24_000, ge=500, description="data tokens one request holds before it is split")
    regenerated_questions: int = Field(default=3, ge=1, le=20, description="questions an answer's relevancy rests on")
    contexts_role: Literal["authoritative", "supplementary"] = Field(
        default="authoritative", description="whether contexts hold the truth or add to it; a sample may say otherwise"
    )
    contexts_alone: bool = Field(default=False, description="judge each context in a request of its own")
    logprobs: bool = Field(
        default=False, description="grade by the probabilities of a scale's numbers where the endpoint gives them"
    )
    fresh: bool = Field(default=False, description="ask anew although a reply is on record")
    pool: str | None = Field(default=None, description="Prefect work pool whose workers judge the samples")
    task_runner: str | None = Field(
        default=None, description="module:factory of a Prefect task runner that judges the samples, such as Dask's"
    )
    part_size: int = Field(default=500, ge=1, description="samples that one worker is given at once")
    shard_size: int = Field(
        default=128, ge=1, le=4096, validate_default=True, description="samples that one task run works on"
    )
    warehouse: str = "duckdb:///evalhouse.duckdb"

    @field_validator("shard_size")
    @classmethod
    def _fit_into_part(cls, shard_size: int, info: ValidationInfo) -> int:
        return min(shard_size, int(info.data.get("part_size", shard_size)))

    @field_validator("votes")
    @classmethod
    def _check_votes(cls, votes: int, info: ValidationInfo) -> int:
        if votes % 2 == 0:
            raise PydanticCustomError("even_votes", "an even number of votes can tie; give an odd one")
        if votes > 1 and info.data.get("judge") == "lexical":
            raise PydanticCustomError(
                "equal_votes", "the lexical judge says the same each time; name a model with --judge, or take one vote"
            )
        return votes
