"""What a call costs, from a table of prices by model that users can lay their own over."""

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import yaml

from tasks.judge_errors import FatalJudgeError


@dataclass(frozen=True, kw_only=True)
class Price:
    """Dollars per million tokens."""

    input_usd: float
    output_usd: float

    def cost_usd(
        self, prompt_tokens: int | None, completion_tokens: int | None, cached_tokens: int | None = None
    ) -> float | None:
        """Dollars for one call; None when the endpoint did not say how many tokens it took."""
        if prompt_tokens is None:
            return None
        return (prompt_tokens * self.input_usd + (completion_tokens or 0) * self.output_usd) / 1e6


def load_prices(path: str | None) -> dict[str, Price]:
    """Our table with the user's file over it; raises FatalJudgeError for a file in another shape."""
    prices = _parse(files("tasks").joinpath("prices.yaml").read_text(encoding="utf-8"), "prices.yaml")
    if path is not None:
        try:
            text = Path(path).read_text(encoding="utf-8")
        except OSError as error:
            raise FatalJudgeError(f"cannot read the price file {path}: {error.strerror}") from None
        prices |= _parse(text, path)
    return prices


def find_price(prices: dict[str, Price], model: str) -> Price | None:
    """The price of a model, also under a dated name such as gpt-4.1-2025-04-14; None when it is not in the table."""
    if model.startswith("lexical"):
        return Price(input_usd=0.0, output_usd=0.0)
    fitting = [name for name in prices if model == name or model.startswith(f"{name}-2")]
    return prices[max(fitting, key=len)] if fitting else None


def _parse(text: str, where: str) -> dict[str, Price]:
    try:
        table = yaml.safe_load(text)
        return {
            str(model): Price(input_usd=float(numbers[0]), output_usd=float(numbers[1]))
            for model, numbers in table.items()
        }
    except (yaml.YAMLError, AttributeError, TypeError, ValueError, LookupError):
        raise FatalJudgeError(
            f"{where} is no price table; each line is `model: [dollars per million input tokens, output tokens]`"
        ) from None
