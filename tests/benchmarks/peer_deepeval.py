"""deepeval over samples of a JSON file, for `peers.py`: runs in an environment of its own and prints one JSON line.

Metrics: GEval correctness, contextual recall, contextual precision, faithfulness; `max_concurrent` is the number of
test cases in flight, the nearest it has to a number of requests.

    PYTHON peer_deepeval.py SAMPLES.json IN_FLIGHT
"""

import json
import os
import resource
import sys
import time
from pathlib import Path

os.environ.update(DEEPEVAL_TELEMETRY_OPT_OUT="YES", DEEPEVAL_UPDATE_WARNING_OPT_IN="NO", ERROR_REPORTING="NO")

from deepeval import evaluate
from deepeval.evaluate import AsyncConfig, CacheConfig, DisplayConfig, ErrorConfig
from deepeval.metrics import ContextualPrecisionMetric, ContextualRecallMetric, FaithfulnessMetric, GEval
from deepeval.models import GPTModel
from deepeval.test_case import LLMTestCase, LLMTestCaseParams


def main() -> None:
    samples = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    cases = [
        LLMTestCase(
            input=sample["question"],
            actual_output=sample["answer"],
            expected_output=sample["ground_truth"],
            retrieval_context=sample["contexts"],
        )
        for sample in samples
    ]
    judge = GPTModel(model="gpt-4o-mini", base_url=os.environ["OPENAI_BASE_URL"], api_key="none-needed", temperature=0)
    compared = [LLMTestCaseParams.ACTUAL_OUTPUT, LLMTestCaseParams.EXPECTED_OUTPUT]
    metrics = [
        GEval(
            name="correctness",
            criteria="Is the actual output factually right by the expected output?",
            evaluation_params=compared,
            model=judge,
        ),
        ContextualRecallMetric(model=judge),
        ContextualPrecisionMetric(model=judge),
        FaithfulnessMetric(model=judge),
    ]
    started, cpu_started = time.monotonic(), time.process_time()
    result = evaluate(
        cases,
        metrics,
        async_config=AsyncConfig(max_concurrent=int(sys.argv[2]), throttle_value=0),
        display_config=DisplayConfig(show_indicator=False, print_results=False),
        cache_config=CacheConfig(write_cache=False, use_cache=False),
        error_config=ErrorConfig(ignore_errors=True),
    )
    wall_s, cpu_s = time.monotonic() - started, time.process_time() - cpu_started
    told = [data for test in result.test_results for data in test.metrics_data or []]
    lost = len(cases) * len(metrics) - sum(data.score is not None for data in told)
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    row = {"wall_s": wall_s, "cpu_s": cpu_s, "peak_mb": peak_mb, "scores": len(cases) * len(metrics), "lost": lost}
    print(json.dumps(row))


if __name__ == "__main__":
    main()
