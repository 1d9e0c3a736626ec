"""Campaign configuration: a YAML file, checked whole before anything starts."""

import difflib
import re
import reprlib
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator

import tilewright
from tilewright.evolve.errors import UserError

PACKAGED = Path(tilewright.__file__).parent / "campaigns"
"""Campaigns that ship with the package."""

_NAME = re.compile(r"^[a-z0-9][a-z0-9._-]{0,63}$")


class Order(StrEnum):
    """The order in which a campaign integrates evaluations: ``index``, as proposed, or ``arrival``, as they finish."""

    INDEX = "index"
    ARRIVAL = "arrival"


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        annotation = cls.model_fields[info.field_name or ""].annotation
        kinds = {annotation, *get_args(annotation)}
        if isinstance(value, bool) and kinds & {int, float} and bool not in kinds:
            raise ValueError(f"must be a number, not {str(value).lower()}")
        return value


RETIRED = frozenset(("local_search", "overlap", "spills", "stall", "bound"))
"""A proposer and descriptors of earlier versions."""

RETIRED_LIMIT = 200
"""Evaluations after which a resumed campaign ends whose journal names no limit but ``until: converged``."""


class BudgetConfig(_Section):
    """Limits of a campaign; the first one reached ends it. ``fitness`` is on the suite, in the operator's unit."""

    evaluations: int | None = Field(default=None, ge=1, le=10**9)
    wall_seconds: float | None = Field(default=None, gt=0)
    fitness: float | None = Field(default=None, gt=0)

    @model_validator(mode="before")
    @classmethod
    def _without_retired(cls, given: Any, info: ValidationInfo) -> Any:
        """A journal of an earlier version may say ``until: converged``, which is gone; what a user writes may not."""
        if not info.context or not isinstance(given, dict) or "until" not in given:
            return given
        kept = {key: value for key, value in given.items() if key != "until"}
        return kept if any(value is not None for value in kept.values()) else {"evaluations": RETIRED_LIMIT}

    @property
    def bounded(self) -> bool:
        return any(v is not None for v in (self.evaluations, self.wall_seconds, self.fitness))


class SearchConfig(_Section):
    """How the search goes on. ``lag`` is how many proposals may be in flight, whatever the workers."""

    proposers: tuple[Literal["parameters", "surrogate", "crossover", "rewrite", "source_crossover"], ...] = (
        "parameters",
        "surrogate",
        "crossover",
        "rewrite",
        "source_crossover",
    )
    niches: bool = True
    """A kernel that a rewrite wrote in another structure is tuned by itself before it competes (with ``rewrite``)."""

    without_rules: tuple[str, ...] = ()
    """Rewrite rules that are not drawn."""

    islands: int = Field(default=2, ge=1, le=64)
    migration_interval: int = Field(default=20, ge=1, le=10**9)
    lag: int = Field(default=4, ge=1, le=4096)
    order: Order = Order.INDEX
    descriptors: tuple[str, ...] = ()
    """Parameters that are part of a candidate's cell beside the descriptors of the target."""

    transfer: Literal["auto"] | tuple[str, ...] = "auto"
    """Finished campaigns (ids, or paths of their folders) whose points this search starts from; ``auto``: the latest of
    the home that search the same operator or a source of the same parameters; an empty list: none."""

    racing: bool | None = None
    """Candidates are timed on a few workloads of the suite first, and on all of them only if they may still be the best
    of their cell or the fastest on a workload. Left out: on for measured suites of 8 workloads or more."""

    finalists: int = Field(default=2, ge=1, le=16)
    """The fittest so many are run on the suite's final workloads; the best of them there wins."""

    @field_validator("proposers", "descriptors", mode="before")
    @classmethod
    def _without_retired(cls, names: Any, info: ValidationInfo) -> Any:
        """A journal of an earlier version may name what is gone; what a user writes may not."""
        if not info.context or not RETIRED.intersection(names):
            return names
        kept = tuple(n for n in names if n not in RETIRED)
        return kept or (("parameters",) if info.field_name == "proposers" else ())

    @field_validator("without_rules")
    @classmethod
    def _known_rules(cls, names: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        """A journal may also name rules of an earlier version."""
        if not names or info.context:
            return names
        from tilewright.evolve.proposers.rewrite.registry import rule_names

        for name in names:
            if name not in rule_names():
                close = difflib.get_close_matches(name, rule_names(), n=1)
                raise ValueError(f"names no rewrite rule{f'; did you mean {close[0]!r}?' if close else ''}")
        return names


class LlmConfig(_Section):
    """A language model that proposes as well, at an OpenAI-compatible endpoint.

    The key comes from the environment only (``TILEWRIGHT_LLM_API_KEY`` or ``OPENAI_API_KEY``). ``total_tokens``
    is the budget of the campaign, questions and answers together. ``retries`` are those of one call, on a
    time-out, a rate limit (as late as it asks for) or a server's fault. ``replay`` is a campaign (its id, or the path
    of a journal) whose recorded exchanges answer instead of the endpoint; ``model`` is then the recorded one.
    """

    model: str | None = None
    base_url: str = "https://api.openai.com/v1"
    total_tokens: int = Field(default=500_000, ge=1, le=10**12)
    completion_tokens: int = Field(default=8192, ge=1, le=10**9)
    timeout_seconds: float = Field(default=120.0, gt=0)
    retries: int = Field(default=3, ge=0, le=1000)
    replay: str | None = None

    @field_validator("base_url")
    @classmethod
    def _is_address(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("must be an address such as http://localhost:8000/v1")
        return url


class WorkerConfig(_Section):
    """``count`` defaults to one a core. Limits hold for one candidate's child process."""

    count: int | None = Field(default=None, ge=1, le=4096)
    address: str | None = Field(default=None, pattern=r"^\S+$")
    memory_gib: float = Field(default=8.0, gt=0, le=2**20)
    check_seconds: float = Field(default=90.0, gt=0)
    measure_seconds: float = Field(default=180.0, gt=0)


class MlflowConfig(_Section):
    enabled: bool = True


class CampaignConfig(_Section):
    """A campaign. ``seeds`` and ``baselines`` name kernels of the operator; empty means all of them."""

    name: str
    operator: str
    target: str
    suite: str
    seed: int = Field(default=0, ge=0, lt=2**32)
    seeds: tuple[str, ...] = ()
    baselines: tuple[str, ...] | None = None
    budget: BudgetConfig
    search: SearchConfig = SearchConfig()
    llm: LlmConfig | None = None
    workers: WorkerConfig = WorkerConfig()
    mlflow: MlflowConfig = MlflowConfig()

    @field_validator("name")
    @classmethod
    def _plain_name(cls, name: str) -> str:
        if not _NAME.match(name):
            raise ValueError("must be lower-case letters, digits, '.', '_' or '-', at most 64")
        return name

    @field_validator("seeds", "baselines")
    @classmethod
    def _distinct(cls, names: tuple[str, ...] | None) -> tuple[str, ...] | None:
        for name in names or ():
            if (names or ()).count(name) > 1:
                raise ValueError(f"names {name!r} twice")
        return names

    @field_validator("llm")
    @classmethod
    def _names_a_model(cls, llm: LlmConfig | None) -> LlmConfig | None:
        if llm is not None and not llm.model and llm.replay is None:
            raise ValueError("needs a model (--llm-model), or a campaign to replay (--llm-replay)")
        return llm

    @field_validator("budget")
    @classmethod
    def _bounded(cls, budget: BudgetConfig) -> BudgetConfig:
        if not budget.bounded:
            raise ValueError("needs at least one of evaluations, wall_seconds, fitness")
        return budget


MOST_LETTERS = 1 << 20
"""Of a campaign's file: a device such as /dev/zero never ends."""


def load_config(path: Path, overrides: dict[str, Any] | None = None) -> CampaignConfig:
    """Read and check a YAML file; ``overrides`` maps dotted keys to values. Raises UserError."""
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(MOST_LETTERS + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {getattr(error, 'strerror', None) or 'not a text file'}.") from error
    if len(text) > MOST_LETTERS:
        raise UserError(f"cannot read {path}: a campaign's file has at most {MOST_LETTERS} letters.")
    data = read_yaml(text, str(path))
    if not isinstance(data, dict):
        raise UserError(f"{path} must hold a mapping of campaign keys such as operator, target, suite.")
    operator = data.get("operator")
    if isinstance(operator, str) and operator.startswith(("./", "../")):
        data["operator"] = _operator_path(path, operator)
    origin = path.stem if path.parent == PACKAGED else str(path)
    return parse_config(overridden(data, overrides or {}), origin)


def _operator_path(path: Path, operator: str) -> str:
    """An operator's path as the campaign's file means it: from the folder that the file lies in."""
    folder = path.resolve().parent
    return operator if folder == Path.cwd() else str((folder / operator).resolve())


def packaged_campaigns() -> list[str]:
    """Names of the campaigns that ship with the package."""
    return sorted(path.stem for path in PACKAGED.glob("*.yaml"))


def campaign_file(name: str) -> Path:
    """The file of a campaign given as a path or by a packaged name. Raises UserError."""
    path = Path(name)
    if path.suffix in (".yaml", ".yml") or path.exists():
        return path
    if name in packaged_campaigns():
        return PACKAGED / f"{name}.yaml"
    close = difflib.get_close_matches(name, packaged_campaigns(), n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise UserError(
        f"campaign: {name!r} is neither a file nor a packaged campaign{hint} (packaged: "
        f"{', '.join(packaged_campaigns())})."
    )


def overridden(data: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """``data`` with the values of dotted keys changed, in place. Raises UserError."""
    for key, value in changes.items():
        _set_key(data, key, value)
    return data


def read_yaml(text: str, origin: str) -> Any:
    """What a YAML document holds. Raises UserError, also for a key that stands twice in one mapping."""
    try:
        return yaml.load(text, _Loader)
    except _DuplicateKey as error:
        raise UserError(f"{origin}: key {error.key!r} is given twice, at line {error.line} again.") from error
    except (ValueError, OverflowError, RecursionError, LookupError, AttributeError) as error:
        # dates and numbers that are none
        raise UserError(f"{origin} holds a value that YAML cannot read.") from error
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f" at line {where.line + 1}" if where else ""
        raise UserError(f"{origin} is not valid YAML{line}.") from error


class _DuplicateKey(yaml.YAMLError):
    def __init__(self, key: str, line: int) -> None:
        super().__init__(key)
        self.key, self.line = key, line


class _Loader(yaml.SafeLoader):
    """The safe one, for which a key given twice is an error: YAML would keep the last without a word."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys: set[str] = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if isinstance(key, yaml.ScalarNode) and key.value in keys:
                raise _DuplicateKey(key.value, key.start_mark.line + 1)
            keys.add(str(key.value))
        return super().construct_mapping(node, deep)


def parse_config(data: dict[str, Any], origin: str = "campaign", *, recorded: bool = False) -> CampaignConfig:
    """Check a mapping, or what a journal has ``recorded``. Raises UserError: a sentence naming the first wrong key."""
    if recorded:  # a journal of an earlier version may hold prices
        data = {key: section for key, section in data.items() if key != "prices"}
    try:
        return CampaignConfig.model_validate(data, context={"recorded": True} if recorded else None)
    except ValidationError as error:
        raise UserError(f"{origin}: {_error_sentence(error)}.") from error


_PYTHON = ((r"valid tuple", "list"), (r"valid dictionary( or instance of \w+)?", "mapping of keys"))
"""What pydantic calls by Python's words, and a YAML file by its own."""


def _set_key(data: dict[str, Any], dotted: str, value: Any) -> None:
    *parents, last = dotted.split(".")
    for part in parents:
        data = data.setdefault(part, {})
        if not isinstance(data, dict):
            raise UserError(f"--set {dotted}: {part} is not a section.")
    data[last] = value


def _error_sentence(error: ValidationError) -> str:
    # a misspelt key is what another one is missing for
    first = min(error.errors(include_url=False), key=lambda found: found["type"] != "extra_forbidden")
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        allowed = _keys_at(first["loc"][:-1])
        close = difflib.get_close_matches(str(first["loc"][-1]), allowed, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        return f"unknown key {key!r}{hint} (allowed: {', '.join(allowed)})"
    if first["type"] == "missing":
        return f"key {key!r} is missing"
    message = first["msg"].removeprefix("Value error, ")
    for python, plain in _PYTHON:
        message = re.sub(python, plain, message)
    return f"{key}: {message[:1].lower()}{message[1:]} (got {_shortened(first.get('input'))})"


def _shortened(value: Any) -> str:
    """A value in few characters: a mapping may hold itself a thousandfold, and an integer have any number of digits."""
    try:
        return reprlib.repr(value).encode(errors="backslashreplace").decode()
    except ValueError:
        return "a number of thousands of digits"


def _keys_at(location: tuple[int | str, ...]) -> list[str]:
    model: type[BaseModel] = CampaignConfig
    for part in location:
        inner = model.model_fields[str(part)].annotation
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return []
        model = inner
    return list(model.model_fields)
