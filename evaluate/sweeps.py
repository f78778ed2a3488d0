"""Sweeps over budget, link bandwidth, sequence length and GPU generation: many cases, on all cores, resumable.

A case names everything by name, or by the hash of its content, so that it can be stored and run in another process. The four
sweeps return cases, as does a grid (`sweep_grid`); `run_cases` turns cases into results, all or none, and `finished_cases` does
so one by one, on any engine (`sweep_engines`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from slackswap.evaluate.bounds import relaxed_bound_s
from slackswap.evaluate.budget import parse_budget
from slackswap.evaluate.results import Result, Row, printable
from slackswap.evaluate.shootout import shootout
from slackswap.evaluate.sweep_engines import Engine, Failure, Local, Task
from slackswap.evaluate.sweep_problems import PackedProblem, kept_problem
from slackswap.evaluate.sweep_store import SweepStore, digest
from slackswap.hardware import DEFAULT_HARDWARE, Hardware, load_hardware
from slackswap.hardware.input_error import InputError
from slackswap.models.problem import Problem
from slackswap.models.workloads import WORKLOADS
from slackswap.planners import Planner, find_planners

LINKS_BYTES_PER_S = (12e9, 25e9, 50e9, 100e9, 200e9, 450e9)  # paper, Figure 6a
SEQUENCES = (2048, 4096, 8192, 16384, 32768)  # paper, Figure 6b
TOKENS_PER_BATCH = 16384
GENERATIONS = ("v100", "a100-pcie4", "h100-sxm")  # paper, section 4.5

Parameter = int | str


class Case(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One planner on one workload and budget, by name.

    Attributes
    ----------
    workload : a name in `WORKLOADS`; beside a carried problem, what people call its source
    planner : a registered planner
    budget : a fraction of the peak or bytes, as on the command line
    hardware : catalog name or path of a TOML file; empty where a problem file has a link of its own
    parameters : pairs of name and value, sorted, that differ from the workload's preset
    link_bytes_per_s : bandwidth of each direction in place of the hardware's, or None
    time_limit_s : for a planner that searches; None leaves it to the planner
    evaluation_limit : plans that a planner that searches may score, so that its result depends on the seed alone; or None
    certified : whether the row has a lower bound and a gap to it, that of the linear relaxation
    carried : SHA-256 of a packed problem that travels with the case, or None
        Workload, parameters, hardware and link then only say where the problem comes from.
    repetition : number of an otherwise equal case, for who measures planning times
    """

    workload: str
    planner: str
    budget: str
    hardware: str = DEFAULT_HARDWARE
    parameters: tuple[tuple[str, Parameter], ...] = ()
    link_bytes_per_s: float | None = None
    seed: int = 0
    time_limit_s: float | None = None
    evaluation_limit: int | None = None
    certified: bool = False
    carried: str | None = None
    repetition: int = 0


class CaseResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A case and its row of results."""

    case: Case
    row: Row


def budget_sweep(
    workloads: Sequence[str], budgets: Sequence[str], planners: Sequence[str], *, hardware: str = DEFAULT_HARDWARE
) -> list[Case]:
    """Return len(workloads) x len(budgets) x len(planners) cases, the last index running fastest."""
    return [
        Case(workload=workload, planner=planner, budget=budget, hardware=hardware)
        for workload in workloads
        for budget in budgets
        for planner in planners
    ]


def bandwidth_sweep(
    workload: str,
    budget: str,
    planners: Sequence[str],
    *,
    links_bytes_per_s: Sequence[float] = LINKS_BYTES_PER_S,
    hardware: str = DEFAULT_HARDWARE,
) -> list[Case]:
    """Return len(links) x len(planners) cases: each link runs at the bandwidth in both directions (paper, Figure 6a)."""
    return [
        Case(workload=workload, planner=planner, budget=budget, hardware=hardware, link_bytes_per_s=float(link))
        for link in links_bytes_per_s
        for planner in planners
    ]


def sequence_sweep(
    workload: str,
    budget: str,
    planners: Sequence[str],
    *,
    sequences: Sequence[int] = SEQUENCES,
    tokens: int = TOKENS_PER_BATCH,
    hardware: str = DEFAULT_HARDWARE,
) -> list[Case]:
    """Return len(sequences) x len(planners) cases of `tokens` a batch, or of one longer sequence (paper, Figure 6b)."""
    return [
        Case(
            workload=workload,
            planner=planner,
            budget=budget,
            hardware=hardware,
            parameters=(("batch", max(1, tokens // sequence)), ("sequence", sequence)),
        )
        for sequence in sequences
        for planner in planners
    ]


def generation_sweep(
    workloads: Sequence[str], budget: str, planners: Sequence[str], *, machines: Sequence[str] = GENERATIONS
) -> list[Case]:
    """Return len(workloads) x len(machines) x len(planners) cases, in the dtype that each GPU trains in."""
    return [
        case
        for workload in workloads
        for machine in machines
        for case in budget_sweep([workload], [budget], planners, hardware=machine)
    ]


def problem_of(case: Case) -> Problem:
    """Return the problem of a case; one process builds each only once, and has kept the one that is carried.

    Raises
    ------
    InputError
        The workload, the hardware or a parameter is unknown or out of range.
    """
    if case.carried is not None:
        return kept_problem(case.carried)
    return _problem(case.workload, load_hardware(case.hardware), case.parameters, case.link_bytes_per_s)


@lru_cache(maxsize=64)
def _problem(
    workload: str, hardware: Hardware, parameters: tuple[tuple[str, Parameter], ...], link_bytes_per_s: float | None
) -> Problem:
    if workload not in WORKLOADS:
        raise InputError(f"is not a workload: use {', '.join(WORKLOADS)}", source=workload)
    problem = WORKLOADS[workload].build(hardware, **dict(parameters))
    if link_bytes_per_s is None:
        return problem
    return problem.with_link(replace(problem.link, d2h_bytes_per_s=link_bytes_per_s, h2d_bytes_per_s=link_bytes_per_s))


def planner_of(case: Case) -> Planner:
    """Return the planner of a case, with its evaluation limit; refuse a name that is none, or several.

    Raises
    ------
    InputError
        Also where a planner that does not search is given an evaluation limit.
    """
    planners = find_planners(case.planner)
    if len(planners) != 1:
        raise InputError("names several planners: a case has one", source=case.planner)
    (planner,) = planners
    if case.evaluation_limit is None:
        return planner
    if not planner.supports.anytime:
        raise InputError("does not search, so it takes no evaluation limit", source=case.planner)
    searching: Any = planner  # what searches is a dataclass with this field, says `Supports`
    limited: Planner = replace(searching, evaluation_limit=case.evaluation_limit)
    return limited


def full_result(case: Case) -> Result:
    """Run a case and return all of its result: problem, outcome with the plan, score."""
    ((result,),) = shootout(
        [problem_of(case)],
        [case.budget],
        [planner_of(case)],
        seed=case.seed,
        time_limit_s=case.time_limit_s,
        bound=relaxed_bound_s if case.certified else None,
    )
    return result


def run_case(case: Case) -> CaseResult:
    """Run a case; return what can be stored of its result."""
    return CaseResult(case, full_result(case).row)


def run_cases(
    cases: Iterable[Case], *, jobs: int | None = None, store: Path | str | None = None, progress: bool = True
) -> list[CaseResult]:
    """Run cases, equal ones once, and return a result for each, in their order.

    Parameters
    ----------
    jobs : processes; None takes one for each core, 1 runs in this process
    store : file that keeps a JSON line for each finished case, as soon as it is finished, or None
        A later run, also one after an interruption, takes from it what it holds of the same cases, made by the same code
        on the same hardware.
    progress : whether a bar on stderr shows it, where stderr is a terminal

    Raises
    ------
    InputError
        A case cannot be run (found before any is run), or the store cannot be read or written.
    """
    wanted = list(cases)
    for case in dict.fromkeys(wanted):
        problem_of(case), planner_of(case), parse_budget(case.budget)
    rows: dict[str, Row] = {}
    with SweepStore(store) as kept:
        for key, case, ended in finished_cases(wanted, engine=Local(jobs), kept=kept, retry=True, progress=progress):
            if isinstance(ended, Failure):
                raise _error_of(case, ended)
            rows[key] = ended
    return [CaseResult(case, rows[case_key(case)]) for case in wanted]


def finished_cases(
    cases: Iterable[Case],
    *,
    engine: Engine,
    kept: SweepStore,
    carried: Mapping[str, PackedProblem] | None = None,
    retry: bool = False,
    progress: bool = True,
) -> Iterator[tuple[str, Case, Row | Failure]]:
    """Yield key, case and row, or the failure, of each case once: first what is kept, then the others as they are finished.

    Each row and failure is in the store before it is yielded. Cases with one key (`case_key`) are one case.

    Parameters
    ----------
    carried : the problems that cases carry, by their hash
    retry : whether kept failures are tried again

    Raises
    ------
    InputError
        The store cannot be written, or the engine cannot work.
    """
    by_key: dict[str, Case] = {}
    for case in cases:
        by_key.setdefault(case_key(case), case)
    missing: dict[str, Case] = {}
    for key, case in by_key.items():
        ended = _kept(case, kept)
        if ended is None or (retry and isinstance(ended, Failure)):
            missing[key] = case
        else:
            yield key, case, ended
    problems = carried or {}
    tasks = [Task(key, case, problems.get(case.carried or "")) for key, case in missing.items()]
    with _bar(len(tasks), progress) as show, contextlib.closing(engine.run(run_case, tasks)) as running:
        for task, value in running:
            if isinstance(value, Failure):
                kept.add_error(_dependencies(task.spec), value.reason)
                yield task.key, task.spec, value
            else:
                kept.add(_dependencies(task.spec), value.row)
                yield task.key, task.spec, value.row
            show(task.spec)


def case_key(case: Case) -> str:
    """Return the hash of all that the result of a case depends on, the code included."""
    return digest(_dependencies(case))


def _dependencies(case: Case) -> bytes:
    """What a result depends on, beside the code: the case, and the machine that its hardware now names."""
    if case.carried is None:
        return msgspec.json.encode((case, repr(load_hardware(case.hardware))))
    unnamed = msgspec.structs.replace(case, workload="", hardware="", parameters=(), link_bytes_per_s=None)
    return msgspec.json.encode(unnamed)


def _kept(case: Case, kept: SweepStore) -> Row | Failure | None:
    depends_on = _dependencies(case)
    reason = kept.error(depends_on)
    return kept.row(depends_on) if reason is None else Failure(reason)


def _error_of(case: Case, failure: Failure) -> Exception:
    if failure.bad_input:
        return InputError(failure.reason, source=describe(case))
    return RuntimeError(f"{describe(case)}: {failure.traceback or failure.reason}")


@contextlib.contextmanager
def _bar(total: int, shown: bool) -> Iterator[Callable[[Case], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False)
    with Progress(*columns, console=console, transient=True, disable=not (shown and console.is_terminal)) as bar:
        task = bar.add_task("the first run of all compiles the event model, once", total=total)
        yield lambda case: bar.update(task, advance=1, description=printable(describe(case)))


def describe(case: Case) -> str:
    """Say on one line what a case is."""
    changed = [f"{name}={value}" for name, value in case.parameters]
    if case.link_bytes_per_s is not None:
        changed.append(f"{case.link_bytes_per_s / 1e9:g} GB/s")
    where = f"on {case.hardware}" if case.hardware else "on its own link"
    text = " ".join([case.workload, *changed, f"{where}, {case.budget}: {case.planner}"])
    if case.evaluation_limit is not None:
        text += f", {case.evaluation_limit:,} plans"
    return text if case.time_limit_s is None else f"{text}, {case.time_limit_s:g} s"
