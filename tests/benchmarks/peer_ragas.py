"""ragas over samples of a JSON file, for `price.py`: runs in a separate environment and prints one JSON line.

Metrics: factual correctness as claims (answer_correctness without its embeddings), context recall, context precision,
faithfulness; with ragas' own retries and its `max_workers` as the number in flight.

    PYTHON peer_ragas.py SAMPLES.json IN_FLIGHT
"""

import json
import math
import resource
import sys
import time
from pathlib import Path

from langchain_openai import ChatOpenAI
from ragas import EvaluationDataset, evaluate
from ragas.llms import LangchainLLMWrapper
from ragas.metrics import AnswerCorrectness, Faithfulness, LLMContextPrecisionWithReference, LLMContextRecall
from ragas.run_config import RunConfig


def main() -> None:
    samples = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    dataset = EvaluationDataset.from_list(
        [
            {
                "user_input": sample["question"],
                "response": sample["answer"],
                "reference": sample["ground_truth"],
                "retrieved_contexts": sample["contexts"],
            }
            for sample in samples
        ]
    )
    judge = LangchainLLMWrapper(ChatOpenAI(model="judge", temperature=0, max_retries=0))
    metrics = [
        AnswerCorrectness(llm=judge, weights=[1.0, 0.0]),
        LLMContextRecall(llm=judge),
        LLMContextPrecisionWithReference(llm=judge),
        Faithfulness(llm=judge),
    ]
    started, cpu_started = time.monotonic(), time.process_time()
    result = evaluate(dataset, metrics=metrics, run_config=RunConfig(max_workers=int(sys.argv[2])), show_progress=False)
    wall_s, cpu_s = time.monotonic() - started, time.process_time() - cpu_started
    scores = [value for row in result.scores for value in row.values()]
    lost = sum(value is None or math.isnan(value) for value in scores)
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"wall_s": wall_s, "cpu_s": cpu_s, "peak_mb": peak_mb, "scores": len(scores), "lost": lost}))


if __name__ == "__main__":
    main()
