"""Writes a campaign's journal into MLflow.

Everything written is a function of the journal, timestamps included, so that writing it twice changes nothing: a mirror
may be killed at any instant and started again. A child run carries its candidate number as a tag from the moment it
exists, and is closed only after all its content is written; the mirror writes an open run again.
"""

import getpass
import hashlib
import itertools
import json
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, Run, RunTag
from mlflow.exceptions import MlflowException

from tilewright.evolve.mlflow_mirror import content as run_content
from tilewright.evolve.mlflow_mirror import view
from tilewright.evolve.mlflow_mirror.content import CANDIDATE, NOTE, UID, CampaignProgress, RunContent
from tilewright.evolve.record.history import Candidate, MutationKind
from tilewright.evolve.record.journal import Journal
from tilewright.evolve.report.bill import ranked
from tilewright.evolve.report.data import CampaignData, load
from tilewright.evolve.report.html import campaign_files
from tilewright.fitness.evaluation import Evaluation
from tilewright.fitness.targets import target_text
from tilewright.seeds.operator import Scope

METRICS_A_BATCH, OTHERS_A_BATCH = 1000, 90
PAGE = 1000
BAD_REQUEST = 400
REFUSALS = 2
"""After so many refusals of a candidate the mirror leaves out its params and metrics; its files have them."""


@dataclass(frozen=True)
class KnownRun:
    """A run in MLflow; ``closed`` runs are complete."""

    run_id: str
    closed: bool


class Mirror:
    """Brings one campaign in one MLflow store up to date with its journal.

    Raises MlflowException or OSError when the store cannot be reached; calling again goes on.
    """

    def __init__(self, journal: Journal, uri: str, artifacts: Path) -> None:
        self._journal = journal
        self._client = MlflowClient(tracking_uri=uri)
        self._artifacts = None if uri.startswith(("http:", "https:", "databricks")) else artifacts
        self._facts: Mapping[str, Any] = journal.meta("campaign", {})
        started = next(event.at for event in journal.events() if event.kind == "started")
        self._started = started
        named = f"{self._facts.get('id')}@{started!r}"  # across homes that share one MLflow server
        self._uid = hashlib.sha256(named.encode()).hexdigest()[:16]
        self._by_index: dict[int, Candidate] = {}
        self._by_genome: dict[str, Candidate] = {}
        self._kind = str(self._facts.get("target_kind"))
        self._progress = CampaignProgress(str(self._facts.get("unit", "TFLOP/s")), self._kind)
        self._progress_metrics: Mapping[str, float] = {}
        self._experiment: str | None = None
        self._parent: str | None = None
        self._children: dict[int, KnownRun] = {}
        self._notes: dict[int, str] = {}
        self._offspring: dict[int, dict[int, None]] = {}
        """Numbers of evaluated children by number of the parent, in the order in which they were evaluated."""
        self._arrival = 0
        self._curve: list[Metric] = []
        self._refusals: Counter[int] = Counter()
        self._shown = ("", 0)

    @property
    def mirrored(self) -> int:
        """Evaluations written so far, counted from the journal's beginning."""
        return self._arrival

    @property
    def page(self) -> str:
        """The path of this campaign's page on the server; empty until the experiment is known."""
        return view.page(self._experiment, self._uid) if self._experiment else ""

    def forget(self) -> None:
        """Read MLflow's runs again before the next write, after a call whose outcome is unknown."""
        self._parent = None

    def advance(self) -> bool:
        """Write the next missing evaluation; False when there is none."""
        if self._parent is None:
            self._open()
        row = next(self._journal.evaluations(self._arrival), None)
        if row is None:
            self._flush()
            return False
        arrival, index, evaluation, at = row[0], row[1], ranked(row[2]), row[3]
        for candidate in self._journal.candidates(len(self._by_index)):  # proposed since the last call
            self._by_index[candidate.index] = self._by_genome[candidate.genome.id] = candidate
        is_seed = self._by_index[index].mutation.kind is MutationKind.SEED
        if self._progress.evaluations != arrival:  # the second attempt of a failed write counts once
            self._progress_metrics = self._progress.add(evaluation, is_seed)
        written = self._write_child(self._by_index[index], evaluation, at)
        if written and is_seed:
            self._write_early(self._by_index[index], evaluation, arrival)
        self._curve += [Metric(k, v, int(at * 1000), arrival) for k, v in self._progress.campaign_metrics().items()]
        self._arrival = arrival
        if written or len(self._curve) > METRICS_A_BATCH // 2:
            self._flush()
        return True

    def show(self, state: str) -> None:
        """Bring the campaign's own run to ``state``: running, killed, interrupted or finished; its description to what
        is written so far."""
        if self._parent is None:
            self._open()
        if (state, self._arrival) == self._shown:
            return
        assert self._parent is not None
        assert self._experiment is not None
        ended = state != "running"
        files = view.run_page(self._experiment, self._parent, "{}")
        data = load(self._journal)
        note = run_content.campaign_note(data, state, files, self._link, ended=ended)
        self._write_view(data)
        tags = {"tilewright.state": state, NOTE: note, **run_content.model_tags(data)}
        self._client.log_batch(self._parent, tags=[RunTag(k, v) for k, v in tags.items()], synchronous=True)
        if ended:
            self._write_references(data)
            asked = [json.loads(text) for _, text in self._journal.exchanges()]
            questions = {"questions.json": json.dumps(asked, indent=1)} if asked else {}
            self._upload(self._parent, {**campaign_files(data), **questions})
            last = int(max(event.at for event in data.events) * 1000)
            costs = run_content.cost_metrics(data)
            self._log(self._parent, {}, [Metric(k, v, last, 0) for k, v in costs.items()])
            status = "FINISHED" if state == "finished" else "KILLED"
            self._client.set_terminated(self._parent, status, last)
        else:
            self._client.update_run(self._parent, status="RUNNING")
        self._shown = (state, self._arrival)

    def delete(self) -> list[str]:
        """Delete the campaign's runs, which MLflow keeps in its trash until its ``gc``; their ids."""
        found = self._client.get_experiment_by_name(self._experiment_name)
        if found is None:
            return []
        self._experiment = str(found.experiment_id)
        runs = [run.info.run_id for run in self._find_runs()]
        for run in runs:
            self._client.delete_run(run)
        return runs

    # -- runs in MLflow ----------------------------------------------------------------------------

    @property
    def _experiment_name(self) -> str:
        return f"tilewright/{self._facts.get('operator')}/{target_text(self._facts.get('target'))}"

    def _open(self) -> None:
        """Find or create the experiment and the campaign's run, and read which candidates have runs."""
        note = {NOTE: "A run is a campaign; its child runs are the candidates."}
        self._experiment = experiment_of(self._client, self._experiment_name, self._artifacts, note)
        parents: list[Run] = []
        children: dict[int, KnownRun] = {}
        extra: list[Run] = []
        for run in self._find_runs():
            index = run.data.tags.get(CANDIDATE)
            if index is None:
                (extra if parents else parents).append(run)
            elif int(index) in children:
                extra.append(run)
            else:
                closed = run.info.status in ("FINISHED", "FAILED")
                children[int(index)] = KnownRun(run.info.run_id, closed)
        for run in extra:  # MLflow may have carried out a request whose answer was lost
            self._client.delete_run(run.info.run_id)
        self._children = children
        self._shown = ("", 0)
        self._parent = self._open_parent(parents[0].info.run_id if parents else None)

    def _find_runs(self) -> list[Run]:
        """Every run of this campaign, oldest first."""
        assert self._experiment is not None
        query, order = f"tags.`{UID}` = '{self._uid}'", ["attributes.start_time ASC"]
        found: list[Run] = []
        token = None
        while True:
            page = self._client.search_runs(
                [self._experiment], query, max_results=PAGE, order_by=order, page_token=token
            )
            found += page
            token = page.token
            if not token:
                return found

    # -- writing -----------------------------------------------------------------------------------

    def _write_early(self, seed: Candidate, evaluated: Evaluation, arrival: int) -> None:
        """Gains of the candidates whose evaluations ended before a seed's, and their links to it and back."""
        first = bool(evaluated.fitness) and evaluated.fitness == self._progress.seed
        for _, index, evaluation, at in itertools.islice(self._journal.evaluations(), arrival):
            run = self._children[index].run_id
            gain = self._progress.gain(evaluation).items() if first else ()
            if rows := [Metric(k, v, int(at * 1000), index) for k, v in gain]:
                self._log(run, {}, rows)
            if index in self._offspring.get(seed.index, ()):
                runs = self._runs_of(self._note(self._by_index[index], ranked(evaluation)))
                self._client.set_tag(run, "parents.run_ids", ", ".join(runs))
                self._link_children(index)
        if seed.index in self._offspring:
            self._link_children(seed.index)

    def _open_parent(self, run_id: str | None) -> str:
        """Create the campaign's run if it has no ``run_id`` yet, and write its parameters."""
        assert self._experiment is not None
        toolchain, system, config = (self._journal.meta(key, {}) for key in ("toolchain", "system", "config"))
        content = run_content.campaign_run(self._facts, toolchain, system, config, self._uid)
        if run_id is None:
            tags, began = {**content.tags, **_source_tags()}, int(self._started * 1000)
            run_id = str(self._client.create_run(self._experiment, began, tags, content.name).info.run_id)
        self._log(run_id, content.params, [])
        return run_id

    def _write_child(self, candidate: Candidate, evaluation: Evaluation, at: float) -> bool:
        """Make one child run complete, and link its parents to it; False when it already was."""
        known = self._children.get(candidate.index)
        parents = self._note(candidate, evaluation)
        for parent in parents:
            self._offspring.setdefault(parent.index, {})[candidate.index] = None
        if known is not None and known.closed:
            return False
        runs, note = self._runs_of(parents), self._notes[candidate.index]
        content = run_content.candidate_run(
            self._facts, candidate, evaluation, parents, runs, self._progress_metrics, note
        )
        if self._refusals[candidate.index] >= REFUSALS:
            content = replace(content, params={}, metrics={})
        try:
            self._complete_child(candidate.index, content, at, evaluation.wall_seconds, known)
            for parent in parents:
                self._link_children(parent.index)
            run_id = self._children[candidate.index].run_id
            self._client.set_terminated(run_id, "FINISHED" if content.passed else "FAILED", int(at * 1000))
            self._children[candidate.index] = KnownRun(run_id, True)
        except MlflowException as error:
            if error.get_http_status_code() == BAD_REQUEST:
                self._refusals[candidate.index] += 1
            raise
        return True

    def _note(self, candidate: Candidate, evaluation: Evaluation) -> list[Candidate]:
        """Make a candidate's description, with links to the parents that have runs; its parents."""
        parents = [self._by_genome[p] for p in candidate.parents if p in self._by_genome]
        self._notes[candidate.index] = run_content.candidate_note(
            self._facts, candidate, evaluation, parents, self._link
        )
        return parents

    def _runs_of(self, candidates: Iterable[Candidate]) -> list[str]:
        return [self._children[c.index].run_id for c in candidates if c.index in self._children]

    def _complete_child(self, index: int, content: RunContent, at: float, took: float, known: KnownRun | None) -> None:
        run_id = known.run_id if known else self._create_child(content, at - took)
        self._children[index] = KnownRun(run_id, False)
        metrics = [Metric(k, v, int(at * 1000), index) for k, v in content.metrics.items()]
        self._log(run_id, content.params, metrics)
        self._upload(run_id, content.files)

    def _link_children(self, index: int) -> None:
        """Write the links to the children that a candidate has so far into its description."""
        if index in self._notes and index in self._children:
            children = list(self._offspring.get(index, ()))
            text = run_content.with_children(self._notes[index], children, self._link)
            self._client.set_tag(self._children[index].run_id, NOTE, text)

    def _link(self, index: int) -> str:
        """The address of a candidate's run; empty while it has none."""
        known = self._children.get(index)
        return view.run_page(self._experiment, known.run_id) if known and self._experiment else ""

    def _create_child(self, content: RunContent, began: float) -> str:
        assert self._experiment is not None and self._parent is not None
        own = {UID: self._uid, "tilewright.campaign": str(self._facts.get("id"))}
        tags = {**content.tags, **own, "mlflow.parentRunId": self._parent, **_source_tags()}
        run = self._client.create_run(self._experiment, int(began * 1000), tags, content.name)
        return run.info.run_id

    def _flush(self) -> None:
        assert self._parent is not None
        if self._curve:
            self._log(self._parent, {}, self._curve)
            self._curve = []

    def _write_view(self, data: CampaignData) -> None:
        """Write the campaign's view, with the parameters that have been varied so far."""
        assert self._experiment is not None
        varied = view.varied_parameters(point.candidate.genome.params for point in data.passed())
        state = view.view_state(self._uid, data.unit, self._kind, varied)
        self._client.set_experiment_tag(self._experiment, f"{view.TAG}{view.view_key(self._uid)}", state)

    def _write_references(self, data: CampaignData) -> None:
        assert self._parent is not None
        values: dict[str, float] = {}
        for scope in (Scope.SUITE.value, Scope.FINAL.value):
            values.update(run_content.reference_metrics(data.references[scope], scope, self._kind))
        at = int(self._started * 1000)
        self._log(self._parent, {}, [Metric(k, v, at, 0) for k, v in values.items()])

    def _log(self, run_id: str, params: Mapping[str, str], metrics: list[Metric]) -> None:
        """One request while it fits MLflow's limits, more beyond."""
        rest = [Param(k, v) for k, v in params.items()]
        first = True
        while first or rest or metrics:
            self._client.log_batch(run_id, metrics[:METRICS_A_BATCH], rest[:OTHERS_A_BATCH], synchronous=True)
            metrics, rest, first = metrics[METRICS_A_BATCH:], rest[OTHERS_A_BATCH:], False

    def _upload(self, run_id: str, files: Mapping[str, str]) -> None:
        with tempfile.TemporaryDirectory(prefix="tilewright-mirror-") as folder:
            for name, text in files.items():
                Path(folder, name).write_text(text, encoding="utf-8", errors="replace")
            self._client.log_artifacts(run_id, folder)


def experiment_of(client: MlflowClient, name: str, artifacts: Path | None, tags: Mapping[str, str]) -> str:
    """The identity of an experiment, made, or restored where it was deleted. ``artifacts``: for its files."""
    found = client.get_experiment_by_name(name)
    if found is None:
        location = None
        if artifacts is not None:
            folder = artifacts.resolve() / name.replace("/", "-")
            folder.mkdir(parents=True, exist_ok=True)
            location = folder.as_uri()
        # The kind makes the UI open on runs and charts instead of traces.
        tags = {**tags, "mlflow.experimentKind": "custom_model_development"}
        try:
            return str(client.create_experiment(name, location, tags))
        except MlflowException:  # another writer was faster
            found = client.get_experiment_by_name(name)
            if found is None:
                raise
    if found.lifecycle_stage == "deleted":
        client.restore_experiment(found.experiment_id)
    return str(found.experiment_id)


def _source_tags() -> dict[str, str]:
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = "unknown"
    return {"mlflow.user": user, "mlflow.source.name": "tilewright", "mlflow.source.type": "LOCAL"}
