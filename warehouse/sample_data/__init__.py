"""The dataset a newcomer's first run evaluates, and small enough to read in an editor.

`sample.jsonl` holds questions to the support, product, HR and IT bot of Farrowick, a maker of grow lights that does not
exist: its products, policies, people and documents are invented for this file. Each row is one sample with the answer
the bot gave, the ground truth and the passages it retrieved, and its `kind` says what the row is there to show: a right
answer, a changed number, a policy that has since been replaced, a refusal, a retrieval that found nothing, an answer
that gives orders to the judge, and so on, in English and in Chinese. With any judge the set leads to every
label and to unscored samples with their reasons. `language`, `kind`, `topic` and `document` become a sample's metadata.

Passages are shared: the same context id is the same text in every row. `reference_context_ids` names the passages that
hold the ground truth, and is left out where no document does or where it is unknown. Loading is the dataset
reader's business; this module only says where the file is.
"""

from pathlib import Path
from typing import Final

SAMPLE: Final = "sample"
"""Its name as a dataset."""
SAMPLE_PATH: Path = Path(__file__).with_name("sample.jsonl")
