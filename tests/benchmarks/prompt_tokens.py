"""Count the tokens that each built-in prompt sends before a sample's data begin, by o200k_base, the vocabulary of
OpenAI's models since GPT-4o; their cache takes no beginning shorter than 1,024 tokens.

    pip install rs-bpe        # brings the vocabulary, which tiktoken would fetch from the network
    python tests/benchmarks/prompt_tokens.py

Writes tests/words/prompt_tokens.json, which `test_prompts.py` holds to the prompts' hashes: run it after a change.
"""

import json
from collections.abc import Callable
from pathlib import Path

from evalhouse.prompts import Prompt, list_languages, load_prompts

RECORD = Path(__file__).parents[1] / "words" / "prompt_tokens.json"


def make_counter() -> Callable[[str], int]:
    try:
        from rs_bpe.bpe import openai  # noqa: PLC0415
    except ImportError:
        import tiktoken  # noqa: PLC0415

        encoding = tiktoken.get_encoding("o200k_base")
        return lambda text: len(encoding.encode(text, disallowed_special=()))
    count: Callable[[str], int] = openai.o200k_base().count
    return count


def count_opening(prompt: Prompt, count: Callable[[str], int]) -> int:
    """The texts alone: what a provider adds between messages, and the reply's schema, come on top."""
    return sum(count(message.content) for message in prompt.opening)


def main() -> None:
    count = make_counter()
    found = {
        f"{language}/{name}": {"prompt_hash": prompt.prompt_hash[:16], "tokens": count_opening(prompt, count)}
        for language in list_languages()
        for name, prompt in sorted(load_prompts(language).items())
    }
    lines = [f"  {json.dumps(name)}: {json.dumps(entry)}" for name, entry in found.items()]
    RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    for name, entry in found.items():
        print(f"{name:32} {entry['tokens']:>6}")


if __name__ == "__main__":
    main()
