"""What a call costs, from a table of prices by model that users can lay their own over."""

import math
import re
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import yaml

from evalhouse.tasks.judge.errors import FatalJudgeError

# A snapshot of a model costs what the model costs: gpt-4.1-2025-04-14, qwen-plus-20250428. Shorter endings (-2407,
# -001) tell versions apart that differ in price, so these stand in the table by their whole names.
_DATE = re.compile(r"[-@](20\d\d)(-?)(0[1-9]|1[0-2])\2(0[1-9]|[12]\d|3[01])", re.ASCII)
_FORM = "`model: [dollars per million input tokens, output tokens]`, with a third number where cached input costs less"


@dataclass(frozen=True, kw_only=True)
class Price:
    """Dollars per million tokens; prompt tokens that the provider had cached cost `cached_usd`."""

    input_usd: float
    output_usd: float
    cached_usd: float | None = None

    def cost_usd(
        self, prompt_tokens: int | None, completion_tokens: int | None, cached_tokens: int | None = None
    ) -> float | None:
        """Dollars for one call; None when the endpoint did not say how many tokens it took.

        `cached_tokens` are part of `prompt_tokens`; without a price of their own they cost what any others cost.
        """
        if prompt_tokens is None:
            return None
        cached = min(cached_tokens or 0, prompt_tokens)
        cached_usd = self.input_usd if self.cached_usd is None else self.cached_usd
        input_usd = (prompt_tokens - cached) * self.input_usd + cached * cached_usd
        return (input_usd + (completion_tokens or 0) * self.output_usd) / 1e6


def load_prices(path: str | None) -> dict[str, Price]:
    """Our table with the user's file over it; raises FatalJudgeError for a file that cannot be read as one."""
    prices = _parse(files("evalhouse.tasks.asking").joinpath("prices.yaml").read_text(encoding="utf-8"), "prices.yaml")
    if path is not None:
        try:
            text = Path(path).read_text(encoding="utf-8")
        except OSError as error:
            raise FatalJudgeError(f"cannot read the price file {path}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise FatalJudgeError(f"cannot read the price file {path}: it is no UTF-8 text") from None
        prices |= _parse(text, path)
    return prices


def find_price(prices: dict[str, Price], model: str) -> Price | None:
    """The price of a model, also under a dated name such as gpt-4.1-2025-04-14; None when it is not in the table."""
    if model.startswith("lexical"):
        return Price(input_usd=0.0, output_usd=0.0)
    if model in prices:
        return prices[model]
    date = _DATE.search(model)
    return prices.get(model[: date.start()]) if date and date.end() == len(model) else None


def _parse(text: str, where: str) -> dict[str, Price]:
    try:
        table = yaml.safe_load(text)
    except yaml.YAMLError as error:
        line = getattr(error, "problem_mark", None)
        place = f", line {line.line + 1}" if line else ""
        raise FatalJudgeError(f"{where}{place} is no YAML; each line of a price table is {_FORM}") from None
    if not isinstance(table, dict) or not table:
        raise FatalJudgeError(f"{where} is no price table; each line is {_FORM}")
    return {str(model): _read_price(numbers, f"{where}, model {model!r}") for model, numbers in table.items()}


def _read_price(numbers: object, where: str) -> Price:
    if not isinstance(numbers, list) or len(numbers) not in (2, 3) or not all(map(_is_price, numbers)):
        raise FatalJudgeError(f"{where}: {numbers!r} is no price; each line is {_FORM}")
    cached_usd = float(numbers[2]) if len(numbers) > 2 else None
    return Price(input_usd=float(numbers[0]), output_usd=float(numbers[1]), cached_usd=cached_usd)


def _is_price(number: object) -> bool:
    """Whether it is an amount of dollars: YAML also has truth values, infinities and what is no number."""
    is_number = isinstance(number, int | float) and not isinstance(number, bool)
    return is_number and math.isfinite(float(number)) and float(number) >= 0  # type: ignore[arg-type]  # checked before
