"""The commands ``tune`` and ``check``."""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright.evolve.errors import UserError
from tilewright.evolve.report.text import duration_text, printable
from tilewright.workers.child.heartbeat import heartbeat

if TYPE_CHECKING:
    from tilewright.evolve.intake.child import Intake
    from tilewright.evolve.intake.problems import Options, Plan
    from tilewright.evolve.intake.tune import Request
    from tilewright.fitness.targets import Target

Tell = Callable[[Any, argparse.Namespace], int]

STEP, BEAT = 5.0, 20.0
"""Seconds between two looks at what a child does, and between two lines where it does the same."""


def add_commands(commands: Any, tell: Tell) -> None:
    """Add them to the parser's. ``tell`` says how a campaign ended."""
    tune = commands.add_parser("tune", help="tune the kernels that a function launches")
    tune.add_argument(
        "place",
        metavar="FILE:FUNCTION",
        help="the function that launches the kernel, or an answer of KernelBench, or a task's folder of GPU MODE",
    )
    _add_call(tune)
    tune.add_argument(
        "--out",
        type=Path,
        help="folder to write the operator to (default: ./FUNCTION_tuned, with a number if that is taken)",
    )
    tune.add_argument("--overwrite", action="store_true", help="replace what an earlier tune wrote there")
    tune.add_argument("--evaluations", type=int, default=64, help="budget of evaluations (default: 64)")
    tune.add_argument("--seconds", type=float, help="budget of seconds")
    tune.add_argument("--seed", type=int, default=0, help="seed of every random choice")
    tune.add_argument(
        "--table",
        type=Path,
        metavar="FILE",
        help="tune every --args in a campaign of its own, and write a row for each: sizes, parameters, modelled time",
    )
    tune.add_argument("--row", metavar="TEXT", help="form of a row of --table, as '({M}): ({bm}),'")
    tune.add_argument("--no-mlflow", action="store_true", help="record in the journal alone")
    tune.set_defaults(run=lambda arguments: _tune(arguments, tell))
    check = commands.add_parser(
        "check", help="report what keeps a kernel file or function from being tuned, and the remedy"
    )
    check.add_argument("place", metavar="FILE[:FUNCTION]", help="a file of kernels, or a function in it")
    _add_call(check)
    check.set_defaults(run=_check)


def _add_call(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--reference",
        help="the function that states the right answer: torch.softmax, or FILE:function (default: the kernel itself)",
    )
    parser.add_argument(
        "--args",
        action="append",
        default=[],
        metavar="CALL",
        help='arguments of a call, for example "f32[4096, 1024], dim=1"; repeat it for another shape',
    )
    parser.add_argument(
        "--call",
        action="append",
        default=[],
        metavar="FILE[:NAME]",
        help="a Python file whose `calls` are lists of arguments, or a function that makes them",
    )
    parser.add_argument(
        "--target",
        help="the device to tune for (default: tpu7x for a file of Pallas, this machine's GPU, or the interpreter)",
    )


def _beats(place: str, intake: Intake) -> contextlib.AbstractContextManager[None]:
    """Lines while a function is read in, which may take minutes: of each step, and now and then of a long one."""
    began = said = time.monotonic()
    last = ""

    def beat() -> None:
        nonlocal said, last
        now, step = time.monotonic(), intake.step or "judging it as a seed"
        if step != last or now - said >= BEAT:
            _say(f"reading {place} in: {step} ({duration_text(now - began)})")
            said, last = now, step

    return heartbeat(STEP, beat)


def _say(line: str) -> None:
    print(printable(line))  # noqa: T201


def _options(arguments: argparse.Namespace, folder: Path) -> tuple[Path, Options]:
    """The file, and what the command line gives beside it; values of calls go to ``folder``. Raises UserError."""
    from tilewright.evolve.intake.child import calls_of_files
    from tilewright.evolve.intake.problems import Options
    from tilewright.evolve.intake.tune import parse_place
    from tilewright.workers.intake.calls.call_text import BadCall, parse
    from tilewright.workers.intake.calls.kept_values import FILE

    path, function = parse_place(arguments.place)
    values = folder / FILE if arguments.call else None
    made = calls_of_files(arguments.call, path, values) if arguments.call else []
    calls = tuple(dict.fromkeys([*made, *arguments.args]))
    try:
        for text in calls:
            parse(text)
    except BadCall as error:
        raise UserError(f"{error}.") from error
    return path, Options(function or "", arguments.reference or "", calls, str(values or ""))


def _plan(
    arguments: argparse.Namespace, target: Target, folder: Path, given: tuple[Path, Options] | None = None
) -> Plan:
    """What to tune; new files are written to ``folder``. Raises UserError."""
    from tilewright.evolve.intake.problems import Plan, is_problem, plan
    from tilewright.evolve.intake.tune import Request, resolve_reference
    from tilewright.workers.intake.judge.self_reference import SELF

    path, options = given or _options(arguments, folder)
    if is_problem(path, options):
        made = plan(path, options, target, folder)
        return replace(made, request=replace(made.request, values=made.request.values or options.values))
    try:
        ast.parse(options.function, mode="eval")
    except (SyntaxError, ValueError) as error:
        raise UserError(f"{arguments.place!r} names no function; write FILE.py:function.") from error
    if not options.calls:
        raise UserError('--args is missing: give the arguments of a call, for example "f32[4096, 1024], dim=1".')
    reference = resolve_reference(options.reference or SELF)
    request = Request(path, options.function, reference, options.calls, options.values, str(folder))
    return Plan(request, request.name, {})


def _tune(arguments: argparse.Namespace, tell: Tell) -> int:
    from tilewright.evolve.intake import child

    began = time.monotonic()
    name = arguments.target or child.default_target(arguments.place)
    with (
        child.started_intake(name, arguments.place) as intake,
        tempfile.TemporaryDirectory(prefix="tilewright-plan-") as folder,
    ):
        # what the command imports takes as long as what the child does
        from tilewright.evolve.campaign.targets import missing_parts, require_usable
        from tilewright.evolve.intake.tune import target_named

        target = target_named(name)
        if arguments.target or not target.gpu_interpreter:
            require_usable(target, remote=False)
        elif lacks := missing_parts(target, remote=False):
            raise UserError(f"no GPU is in sight, and to check Triton kernels without one: {lacks}.")
        code = _run(arguments, tell, intake, target, _plan(arguments, target, Path(folder)))
    if code == 0:
        took = duration_text(time.monotonic() - began)
        _say(f"tune took {took}; the bill holds the campaign's part of that")
    return code


def _run(arguments: argparse.Namespace, tell: Tell, intake: Intake, target: Target, plan: Plan) -> int:
    import tilewright
    from tilewright.evolve.intake import child, table
    from tilewright.evolve.intake.problems import write_files
    from tilewright.evolve.intake.tune import config_of, export, output_folder, prepare
    from tilewright.evolve.record.home import home_folder, require_writable
    from tilewright.workers.device.warm_device import device_for

    request = plan.request
    home = home_folder(arguments.home)
    where = output_folder(plan.name, request.name, arguments.out, arguments.overwrite)
    overrides: dict[str, Any] = {"budget.evaluations": arguments.evaluations, "seed": arguments.seed}
    if arguments.seconds is not None:
        overrides["budget.wall_seconds"] = arguments.seconds
    if arguments.no_mlflow:
        overrides["mlflow.enabled"] = False
    config_of(request, target, where, overrides)  # reports bad numbers before anything is done
    places = {"--out": where, "home": home}
    if arguments.table is not None:
        table.require_table(arguments.table, target, arguments.overwrite)
        places["--table"] = arguments.table.absolute().parent
    elif arguments.row is not None:
        raise UserError("--row: it is the form of a row of --table; add --table FILE.")
    for key, folder in places.items():
        require_writable(folder, key)
    with child.started_trial(target) as trial:
        with device_for(target) as device:
            if device is not None:
                device.expect_reference()
            with _beats(arguments.place, intake):
                answer = prepare(request, target, where, _say, intake, overrides)
            write_files(where, plan.files)
            if plan.files:  # they lie in the operator's folder from now on
                request = replace(request, path=where.resolve() / request.path.name)
                settings = json.dumps(answer.get("settings")).replace(request.made, str(where.resolve()))
                answer["settings"] = json.loads(settings)
            from tilewright.evolve.intake.seed_verdict import run_judged  # imported while the intake works

            if arguments.table is not None:
                from tilewright.evolve.run import run
                from tilewright.evolve.show.display import make_display

                row = table.row_format(arguments.row, answer)
                lost = table.tune_shapes(
                    arguments.table,
                    row,
                    answer,
                    home,
                    lambda suite: run(
                        config_of(request, target, where, {**overrides, "suite": suite}), home, make_display()
                    ),
                    _say,
                )
                _say(f"table: {arguments.table}" + (f"; it lacks a shape: {lost.value}" if lost else ""))
                return 2 if lost else 0
            config = config_of(request, target, where, overrides)
            outcome = run_judged(config, home, request, answer, target, where, device, _say)
        code = tell(outcome, arguments)
        if code == 0:
            campaign = tilewright.open_campaign(outcome.campaign, home=home)
            module = export(campaign, request, answer, where, target, trial)
            tell_module(module, answer.get("asked", request), target)
    return code


def tell_module(module: Path, request: Request, target: Target) -> None:
    """The module that ``tune`` wrote, how to call it, and what comes next."""
    near = module.relative_to(Path.cwd()) if module.is_relative_to(Path.cwd()) else module
    _say(f"winner: {near} (a plain module: {request.name})")
    if target.entry == "build":
        _say("without a TPU, call it within jax.experimental.pallas.tpu.force_tpu_interpret_mode()")
    if target.gpu_interpreter:
        _say("a program without a GPU that calls it, or your function, needs TRITON_INTERPRET=1")
        campaign = near.parent / "campaign.yaml"
        _say(f"next, with an NVIDIA GPU: tilewright run {campaign} --target cuda --set suite=calls; tilewright promote")


def _check(arguments: argparse.Namespace) -> int:
    from tilewright.evolve.intake.child import default_target, holds_cuda, started_intake

    name = arguments.target or default_target(arguments.place)
    with (
        started_intake(name, arguments.place) as intake,
        tempfile.TemporaryDirectory(prefix="tilewright-plan-") as folder,
        contextlib.ExitStack() as stack,
        _beats(arguments.place, intake),
    ):
        # what the command imports takes as long as what the child does
        from tilewright.evolve.intake import preflight
        from tilewright.evolve.intake.problems import is_problem
        from tilewright.evolve.intake.remedies import Obstacle, remedy
        from tilewright.evolve.intake.tune import IntakeRefused, ask_intake, target_named, warm_up
        from tilewright.workers.device.warm_device import device_for

        target = target_named(name)
        device = stack.enter_context(device_for(target))
        path, options = _options(arguments, Path(folder))
        if not options.function and not is_problem(path, options):
            if options.calls or options.reference or holds_cuda(path):
                raise UserError(f"which function of {path}? Write {path}:FUNCTION.")
            return _check_file(path)
        request = _plan(arguments, target, Path(folder), (path, options)).request
        if device is not None:
            device.expect_reference()
        try:
            answer = ask_intake(request, target, intake, lambda: warm_up(request))
        except IntakeRefused as error:
            for line in str(error).splitlines():
                _say(line)
            return 2
        from tilewright.evolve.intake.seed_verdict import seed_failure

        if why := seed_failure(request, answer, target, device):
            what = f"as a campaign's seed it {why.removesuffix('.')}"
            name = f"{request.path.name}:{request.function} cannot be tuned"
            _say(Obstacle(name, 0, what, remedy(what)).text())
            return 2
        _say(f"{arguments.place} can be tuned: it passes as a campaign's seed")
        asked = answer.get("asked", request)
        for line in (*preflight.screen(answer, asked.reference, target.label), *preflight.rewrites(answer, target)):
            _say(line)
    return 0


def _check_file(path: Path) -> int:
    """The dialect's findings on a kernel module. Raises UserError for any other file."""
    from tilewright.evolve.intake.problems import names_in
    from tilewright.evolve.intake.remedies import Obstacle, remedy
    from tilewright.fitness import dialect

    names = names_in(path)
    entry = next((name for name in ("launch", "build") if name in names), None)
    if entry is None:
        if not names:
            raise UserError(f"{path} defines no function.")
        raise UserError(f"which function of {path}? Write {path}:FUNCTION; it holds {', '.join(names)}.")
    violations = dialect.check(path.read_text(encoding="utf-8-sig"), entry=entry)
    for v in violations:
        _say(Obstacle(path.name, v.line, v.what, remedy(v.what)).text())
    if not violations:
        _say(f"{path.name} is a valid kernel module (its entry point is {entry})")
    return 2 if violations else 0
