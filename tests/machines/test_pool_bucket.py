"""A run over workers whose lake is in a bucket and whose limit is kept by the Prefect server, as for machines that
share nothing else: the endpoint goes by a name that counts as of another machine."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from cli_house import make_rows, write_dataset
from kill_runs import noting_endpoint
from moto.server import ThreadedMotoServer
from pool_house import POOL, TIMEOUT_S, open_pool_house
from postgres_server import PostgresServer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="descendants of a worker are found in /proc"),
]

N_SAMPLES = 20
N_CALLS = 6
IN_FLIGHT = 6


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """A bucket for the test; yields the variables that lead to it."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    variables = {
        "AWS_ENDPOINT_URL_S3": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3", endpoint_url=variables["AWS_ENDPOINT_URL_S3"], region_name="us-east-1")
    client.create_bucket(Bucket="lake")
    try:
        yield variables
    finally:
        client.close()
        server.stop()


def test_workers_that_share_a_bucket_and_a_prefect_server(
    bucket: dict[str, str], postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVALHOUSE_STATE_DIR", str(tmp_path / "state"))
    write_dataset(tmp_path, make_rows(N_SAMPLES), "items.jsonl")
    options = {"latency": 0.2, "max_in_flight": IN_FLIGHT}
    with noting_endpoint(**options) as endpoint:
        url = f"ducklake:{postgres.make_database('bucket')}?data=s3://lake/evalhouse"
        database = postgres.make_database("bucket_prefect")
        with open_pool_house(tmp_path, url, endpoint, database=database, **bucket) as house:
            for _ in range(2):
                house.start_worker()
            arguments = ("run", "items.jsonl", "--judge", "openai:judge", "--pool", POOL, "--part-size", "10", "--json")
            ended = house.place.call_process(*arguments, "--concurrency", str(IN_FLIGHT), timeout_s=TIMEOUT_S)
            assert ended.status == 0, (ended, house.read_logs())
            limits = house.post("/v2/concurrency_limits/filter", {})
            (row,) = house.query("select count(*) as n, count(distinct (sample_id, step)) as n_keys from outcomes")
    assert [limit["limit"] for limit in limits if "0.0.0.0" in limit["name"]] == [IN_FLIGHT]
    assert endpoint.stats.statuses[429] == 0
    assert endpoint.stats.max_in_flight <= IN_FLIGHT
    assert len({noted.texts for noted in endpoint.asked}) == len(endpoint.asked) == N_SAMPLES * N_CALLS
    assert row["n"] == row["n_keys"]
    client = boto3.client("s3", endpoint_url=bucket["AWS_ENDPOINT_URL_S3"], region_name="us-east-1")
    files = client.list_objects_v2(Bucket="lake", Prefix="evalhouse/")["Contents"]
    client.close()
    assert [one for one in files if one["Key"].endswith(".parquet")]
