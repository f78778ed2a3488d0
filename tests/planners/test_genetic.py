"""The genetic searches: operators, fitness, the search as a whole, and what DEAP could spoil.

Chains as in `test_exhaustive`: a tensor of 1 MB per layer, 1 ms forward, 2 ms backward and 1 ms for a rebuild each.
"""

from __future__ import annotations

import copy
import pickle
import random
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from instances import MB, MS, PLAIN_LINK, chain, crowded_chains, problems

from slackswap.hardware import load_hardware
from slackswap.hardware.link import Link
from slackswap.models.event_model import peak_bytes, simulate, simulate_many
from slackswap.models.plan import DecisionArray, Plan
from slackswap.models.problem import Operator, Problem, Rebuild, Tensor
from slackswap.models.workloads import WORKLOADS
from slackswap.planners import Outcome, Status, run_planner
from slackswap.planners.exhaustive import Exhaustive, count_plans
from slackswap.planners.genetic import planner as genetic_module
from slackswap.planners.genetic.operators import Genes, cross, genes_of, mutate, plans_of, random_plans
from slackswap.planners.genetic.planner import GA_RANDOM, GA_SEEDED, Genetic
from slackswap.planners.genetic.search import Individual, Search, StepFitness, restart_sizes, same_genes, survivors
from slackswap.planners.memory_floor import plan_floor_bytes

SLOW_LINK = Link(1e8, 1e8, duplex_factor=1.0, latency_s=0.0)  # 10 ms a tensor
both = pytest.mark.parametrize("planner", [GA_SEEDED, GA_RANDOM], ids=lambda planner: planner.name)
TRANSFORMERS = ("bert-large", "gpt2-xl", "llama-7b")


@cache
def small_gpt() -> Problem:
    parameters = {"layers": 3, "hidden": 256, "heads": 4, "vocabulary": 1000, "sequence": 64, "batch": 4}
    return WORKLOADS["gpt2-xl"].build(load_hardware("a100-pcie4"), **parameters)


@cache
def workload(name: str) -> Problem:
    return WORKLOADS[name].build(load_hardware("a100-pcie4"))


@pytest.fixture
def always_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no problem be small enough to be tried whole."""
    monkeypatch.setattr(genetic_module, "SMALL", 0)


def decisions(outcome: Outcome) -> DecisionArray:
    assert isinstance(outcome.plan, Plan)
    return outcome.plan.decisions


def search_on(problem: Problem, budget_bytes: int, evaluation_limit: float = 1000, seed: int = 0) -> Search:
    return Search(
        problem,
        budget_bytes,
        genes_of(problem),
        np.random.default_rng(seed),
        threads=1,
        began_s=time.perf_counter(),
        ends_s=float("inf"),
        evaluation_limit=evaluation_limit,
    )


# ---- Operators -----------------------------------------------------------------------------------------------------


def two_blocks() -> Problem:
    """Two blocks of two saved tensors (2 and 3 MB; the larger ones have a rebuild) and a last one that is not saved."""
    operators = [Operator(f"f{i}", "forward", MS) for i in range(5)] + [Operator("b", "backward", MS)]
    tensors = [
        Tensor(f"t{i}", (2 + i % 2) * MB, i, (5,), block=i // 2, rebuild=Rebuild(MS) if i % 2 else None)
        for i in range(4)
    ]
    return Problem.from_records("two blocks", operators, [*tensors, Tensor("out", MB, 4, ())], PLAIN_LINK)


def test_genes_are_the_saved_tensors() -> None:
    genes = genes_of(two_blocks())
    assert genes.tensors.tolist() == [0, 1, 2, 3]
    assert genes.n_choices.tolist() == [2, 3, 2, 3]
    assert genes.block_start.tolist() == [0, 2, 4]
    assert genes.sizes.label.tolist() == genes.kinds.label.tolist() == [0, 1, 0, 1]
    assert genes.kinds.members.tolist() == [0, 2, 1, 3]
    assert genes.kinds.rank.tolist() == [0, 0, 1, 1]
    assert plans_of(two_blocks(), genes, np.array([[1, 2, 0, 1]], np.int8)).tolist() == [[1, 2, 0, 1, 0]]


def test_without_blocks_every_gene_is_one() -> None:
    problem = replace(chain(4), block=np.full(4, -1))
    assert genes_of(problem).block_start.tolist() == [0, 1, 2, 3, 4]


def check_legal(genes: Genes, table: DecisionArray) -> None:
    assert table.dtype == np.int8
    assert (table >= 0).all()
    assert (table < genes.n_choices).all()


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), database=None, derandomize=True)
@given(st.one_of(problems(), crowded_chains()), st.integers(0, 1000))
def test_operators_make_legal_plans_and_leave_their_parents_alone(problem: Problem, seed: int) -> None:
    if not problem.saved.any():
        return
    genes, rng = genes_of(problem), np.random.default_rng(seed)
    mothers, fathers = (random_plans(genes, 30, rng) for _ in range(2))
    before = mothers.copy(), fathers.copy()
    children = cross(genes, mothers, fathers, rng)
    assert ((children == mothers) | (children == fathers)).all()
    check_legal(genes, mothers)
    unchanged = children.copy()
    assert mutate(genes, children, rng) is children
    check_legal(genes, children)
    assert (children != unchanged).any(axis=1).mean() > 0.5  # a copied block or a run may be what was there
    assert np.array_equal(mothers, before[0])
    assert np.array_equal(fathers, before[1])
    assert not np.shares_memory(children, mothers)
    simulate_many(problem, plans_of(problem, genes, children), 1e9)  # refuses what is illegal


def test_every_plan_can_come_about() -> None:
    problem = chain(3)  # 18 plans
    genes, rng = genes_of(problem), np.random.default_rng(0)
    for table in (
        random_plans(genes, 2000, rng),
        mutate(genes, np.repeat([[0, 0, 0]], 5000, axis=0).astype(np.int8), rng),
    ):
        assert len(np.unique(table, axis=0)) == count_plans(problem)


def test_random_plans_have_shares_of_their_own() -> None:
    genes = genes_of(chain(200))
    kept = (random_plans(genes, 500, np.random.default_rng(0)) == 0).mean(axis=1)
    # Uniform among all shares, that of keep has the density 2 (1 - x): mean 1/3, and 19% of them are below 0.1.
    assert kept.mean() == pytest.approx(1 / 3, abs=0.03)
    assert (kept < 0.1).mean() == pytest.approx(0.19, abs=0.05)
    assert (kept > 0.7).mean() == pytest.approx(0.09, abs=0.04)


def test_children_inherit_stretches_or_kinds() -> None:
    problem = workload("bert-large")
    genes, rng = genes_of(problem), np.random.default_rng(0)
    shape = 400, genes.tensors.size
    from_father = cross(genes, np.zeros(shape, np.int8), np.ones(shape, np.int8), rng) == 1
    changes = (from_father[:, 1:] != from_father[:, :-1]).sum(axis=1)
    stretches = changes <= 2
    assert 0.4 < stretches.mean() < 0.6
    of_kinds = from_father[~stretches]
    for members in np.split(genes.kinds.members, genes.kinds.start[1:]):
        assert (of_kinds[:, members] == of_kinds[:, members[:1]]).all()


def test_an_exchange_keeps_what_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slackswap.planners.genetic.operators._MUTATION_SHARES", np.array([1.0, 0, 0, 0]))
    monkeypatch.setattr("slackswap.planners.genetic.operators._EXCHANGED_ALIKE", 1.0)
    problem = workload("bert-large")
    genes, rng = genes_of(problem), np.random.default_rng(0)
    sizes = problem.tensor_bytes[genes.tensors]
    table = random_plans(genes, 200, rng)
    freed_bytes = ((table > 0) * sizes).sum(axis=1)
    changed = mutate(genes, table.copy(), rng)
    same = ((changed > 0) * sizes).sum(axis=1) == freed_bytes
    # The others have no partner of their size that decides otherwise, or none that may: some tensors have no rebuild.
    assert same.mean() > 0.5
    assert (changed != table).any(axis=1).all()


# ---- Fitness and selection -----------------------------------------------------------------------------------------


def test_what_does_not_fit_is_fitter_the_further_it_gets() -> None:
    # A chain of 4 at 2 MB, ideal 12 ms. KKKK: f2 cannot start at 2 ms, 10 of 12 ms undone, 1 MB missing. SKKK: a0 leaves from 1
    # to 2 ms, so f2 runs; f3 cannot start at 3 ms. SSKK: a1 leaves from 2 to 3 ms: everything runs, and nothing waits but for
    # the copies back.
    search = search_on(chain(4), 2 * MB)
    values = search.evaluate(np.array([[0, 0, 0, 0], [1, 0, 0, 0], [1, 1, 0, 0]], np.int8))
    assert values[0] == pytest.approx((1 + 10 / 12, 1 * MB))
    assert values[1] == pytest.approx((1 + 9 / 12, 1 * MB))
    assert values[2] == (0.0, simulate(chain(4), Plan.from_letters("SSKK"), 2 * MB).step_s)
    fitness = [StepFitness(one) for one in values]
    assert fitness[2] > fitness[1] > fitness[0]


def test_of_two_that_get_equally_far_the_one_that_lacks_less_is_fitter() -> None:
    assert StepFitness((1.5, 10.0)) > StepFitness((1.5, 11.0)) > StepFitness((1.6, 1.0))
    assert StepFitness((0.0, 1e9)) > StepFitness((1.0, 1.0))  # however slow, it fits


def test_a_plan_that_fails_at_operators_without_time_does_not_fit() -> None:
    # b takes no time and needs 5 MB: at 4 MB no operator time is left undone, and yet nothing ran.
    operators = [Operator("f", "forward", MS), Operator("b", "backward", 0.0, 5 * MB)]
    problem = Problem.from_records("late", operators, [Tensor("a", MB, 0, (1,))], PLAIN_LINK)
    [(first, missing)] = search_on(problem, 4 * MB).evaluate(np.zeros((1, 1), np.int8))
    assert (first, missing) == (1.0, 2 * MB)


def scored(genes: list[int], values: tuple[float, float]) -> Individual:
    individual = Individual(np.array(genes, np.int8))
    individual.fitness.values = values
    return individual


def test_survivors_are_the_fittest_and_all_different() -> None:
    a, b, c, d = scored([0], (0, 2.0)), scored([1], (0, 1.0)), scored([2], (0, 2.0)), scored([3], (1.2, 5.0))
    assert survivors([a, b, c, d], 10) == [b, a, d]
    assert survivors([d, c, b, a], 2) == [b, c]  # of equals the first: parents stand before children


def test_sizes_of_populations() -> None:
    sizes = restart_sizes()
    assert [next(sizes) for _ in range(15)] == [1, 1, 2, 1, 1, 2, 4, 1, 1, 2, 1, 1, 2, 4, 8]


# ---- The search ----------------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("whole", [True, False])
def test_the_optimum_of_a_chain(planner: Genetic, whole: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not whole:
        monkeypatch.setattr(genetic_module, "SMALL", 0)
    # At 3 MB a0 or a1 has to go before f3. A copy would take until 11 or 12 ms; the rebuild of a1 takes 1 ms.
    outcome = run_planner(replace(planner, evaluation_limit=2000), chain(4, SLOW_LINK), 3 * MB)
    assert Plan(decisions(outcome)).letters == "KRKK" or not whole  # SRSK takes as long
    assert outcome.claimed_step_s == pytest.approx(13 * MS)
    assert outcome.status is (Status.OPTIMAL if whole else Status.FEASIBLE)
    assert outcome.lower_bound_s == (outcome.claimed_step_s if whole else None)


@both
@pytest.mark.usefixtures("always_searches")
def test_a_step_without_delay_ends_the_search(planner: Genetic) -> None:
    outcome = run_planner(replace(planner, evaluation_limit=10**6), chain(30), 28 * MB)
    assert outcome.status is Status.OPTIMAL
    assert outcome.lower_bound_s == outcome.claimed_step_s == chain(30).ideal_s
    assert outcome.evaluations < 10_000


@pytest.mark.usefixtures("always_searches")
def test_it_finds_what_brute_force_finds() -> None:
    # Problems with 64 to 6,561 plans. Measured on 100 examples: 98% (seeded) and 100% of 51 optimal, the worst 1.5% slower.
    excess: dict[str, list[float]] = {"ga-seeded": [], "ga-random": []}

    @settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck), database=None, derandomize=True)
    @given(st.one_of(problems(), crowded_chains()), st.sampled_from([0.0, 0.1, 0.25, 0.5]))
    def compare(problem: Problem, share: float) -> None:
        floor, peak = plan_floor_bytes(problem), peak_bytes(problem)
        budget_bytes = floor + int(share * (peak - floor))
        if budget_bytes >= peak or not 64 <= count_plans(problem) <= 3**8:
            return
        best_s = run_planner(Exhaustive(threads=1), problem, budget_bytes).claimed_step_s
        assert best_s is not None
        for planner in (GA_SEEDED, GA_RANDOM):
            outcome = run_planner(replace(planner, evaluation_limit=2000, threads=1), problem, budget_bytes)
            assert outcome.claimed_step_s is not None
            excess[planner.name].append(outcome.claimed_step_s / best_s - 1.0 if best_s > 0 else 0.0)

    compare()
    for name, values in excess.items():
        found = np.array(values)
        print(f"{name}: {(found <= 1e-9).mean():.1%} optimal of {found.size}, the worst {found.max():.2%} slower")
        assert found.size >= 25
        assert (found >= -1e-9).all()
        assert (found <= 1e-9).mean() >= 0.85
        assert found.max() < 0.1


@both
def test_same_seed_and_evaluations_same_result_on_any_number_of_threads(planner: Genetic) -> None:
    problem, results = small_gpt(), []
    for threads, seed in ((1, 3), (1, 3), (2, 3), (5, 3), (1, 4)):
        limited = replace(planner, evaluation_limit=3000, threads=threads)
        outcome = run_planner(limited, problem, int(0.4 * peak_bytes(problem)), seed=seed)
        history = [(point.evaluations, point.step_s) for point in outcome.history]
        results.append((decisions(outcome).tolist(), outcome.claimed_step_s, outcome.evaluations, history))
    assert results[0] == results[1] == results[2] == results[3]
    assert results[4][3] != results[0][3]  # another seed, another way


@both
def test_limits_on_evaluations_are_exact(planner: Genetic) -> None:
    problem = small_gpt()
    budget_bytes = int(0.4 * peak_bytes(problem))
    for limit in (150, 1234):
        outcome = run_planner(replace(planner, evaluation_limit=limit), problem, budget_bytes)
        assert outcome.evaluations == limit


@both
@pytest.mark.parametrize("seconds", [0.0, 0.3])
def test_time_is_kept(planner: Genetic, seconds: float) -> None:
    problem = workload("gpt2-xl")
    run_planner(replace(planner, evaluation_limit=300), problem, int(0.5 * peak_bytes(problem)))  # DEAP is imported
    outcome = run_planner(planner, problem, int(0.5 * peak_bytes(problem)), time_limit_s=seconds)
    # 10%, a loaded machine's slices, and the seeds: planners that take some 30 ms whatever the limit.
    assert outcome.seconds < 1.1 * seconds + 0.2
    assert outcome.seconds > 0.9 * seconds
    if planner is GA_RANDOM and not seconds:
        assert (outcome.status, outcome.plan) == (Status.TIME_LIMIT, None)
    else:
        assert outcome.status is Status.FEASIBLE


@both
def test_history_is_the_way_to_the_plan(planner: Genetic) -> None:
    problem = small_gpt()
    budget_bytes = int(0.3 * peak_bytes(problem))
    outcome = run_planner(replace(planner, evaluation_limit=5000), problem, budget_bytes)
    assert len(outcome.history) > 3
    for earlier, later in zip(outcome.history, outcome.history[1:], strict=False):
        assert later.step_s < earlier.step_s
        assert later.evaluations > earlier.evaluations
        assert later.seconds >= earlier.seconds
    last = outcome.history[-1]
    assert last.step_s == outcome.claimed_step_s
    assert simulate(problem, Plan(decisions(outcome)), budget_bytes).step_s == last.step_s
    assert last.evaluations <= outcome.evaluations
    assert last.seconds <= outcome.seconds


@pytest.mark.parametrize("limit", [0, 1, 500])
def test_never_slower_than_the_best_seed(limit: int) -> None:
    for problem, share in (
        (small_gpt(), 0.25),
        (small_gpt(), 0.6),
        (workload("llama-7b"), 0.2),
        (chain(40, SLOW_LINK), 0.7),
    ):
        budget_bytes = int(share * peak_bytes(problem))
        outcome = run_planner(replace(GA_SEEDED, evaluation_limit=limit), problem, budget_bytes)
        assert outcome.claimed_step_s is not None
        for seed in GA_SEEDED.seeds:
            plan = run_planner(seed, problem, budget_bytes).plan
            if plan is not None:
                step = simulate(problem, plan, budget_bytes)
                assert not step.fits or outcome.claimed_step_s <= step.step_s


def test_the_seeds_are_improved_on() -> None:
    # Llama-7B at 20%: SlackSwap reaches 93.71% of the ideal, the bound is 94.05%; measured after 3,000 plans: 93.98%.
    problem = workload("llama-7b")
    outcome = run_planner(replace(GA_SEEDED, evaluation_limit=3000), problem, int(0.2 * peak_bytes(problem)))
    assert outcome.claimed_step_s is not None
    assert problem.ideal_s / outcome.claimed_step_s > 0.938


@pytest.mark.parametrize("name", TRANSFORMERS)
@pytest.mark.parametrize("share", [0.2, 0.1])
def test_random_plans_lead_to_one_that_fits(name: str, share: float) -> None:
    # The paper's search finds none at 20% in 6,600 to 14,000 plans (section 4.4).
    problem = workload(name)
    outcome = run_planner(replace(GA_RANDOM, evaluation_limit=300), problem, int(share * peak_bytes(problem)))
    assert outcome.status is Status.FEASIBLE


def flat(search: Search) -> None:
    """Let all plans that do not fit be equally unfit."""
    search.toolbox.register(
        "evaluate", lambda table: [one if one[0] == 0 else (1.0, 0.0) for one in search.evaluate(table)]
    )


def graded(search: Search) -> None:
    """Leave the fitness as it is."""


@pytest.mark.parametrize(("fitness", "fits"), [(flat, False), (graded, True)])
def test_the_graded_fitness_alone_leads_to_plans_that_fit(fitness: Callable[[Search], None], fits: bool) -> None:
    # From plans with a third of each decision, as the paper's random ones are, none of which fits at 20%.
    problem = workload("llama-7b")
    search = search_on(problem, int(0.2 * peak_bytes(problem)), evaluation_limit=2000)
    fitness(search)
    search.toolbox.register(
        "random_plans",
        lambda count: search.rng.integers(0, search.genes.n_choices, (count, search.genes.tensors.size), np.int8),
    )
    search.run([], 100)
    assert (search.best is not None) == fits
    assert not search.history or search.history[0].evaluations > 100


@both
def test_a_budget_below_the_floor(planner: Genetic) -> None:
    problem = small_gpt()
    floor_bytes = plan_floor_bytes(problem)
    outcome = run_planner(planner, problem, floor_bytes - 1)
    assert outcome.status is Status.INFEASIBLE
    assert outcome.evaluations <= 2  # nothing was searched
    assert outcome.infeasibility is not None
    assert outcome.infeasibility.operator in problem.operator_names
    assert outcome.infeasibility.missing_bytes == 1
    assert run_planner(replace(planner, evaluation_limit=2000), problem, floor_bytes).status is Status.FEASIBLE


@both
def test_a_budget_that_holds_everything(planner: Genetic) -> None:
    problem = small_gpt()
    outcome = run_planner(planner, problem, peak_bytes(problem))
    assert (outcome.status, outcome.claimed_step_s) == (Status.OPTIMAL, problem.ideal_s)
    assert not decisions(outcome).any()


@both
def test_ctrl_c_gets_through(planner: Genetic, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("slackswap.planners.genetic.search.Batch.run", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_planner(planner, small_gpt(), int(0.4 * peak_bytes(small_gpt())))


# ---- What DEAP could spoil -----------------------------------------------------------------------------------------


@both
def test_global_random_numbers_are_neither_read_nor_moved(planner: Genetic) -> None:
    problem = small_gpt()
    budget_bytes, plans = int(0.4 * peak_bytes(problem)), []
    for seed in (1, 2):
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002  # the global generator is what this is about
        before = random.getstate(), str(np.random.get_state())  # noqa: NPY002
        plans.append(decisions(run_planner(replace(planner, evaluation_limit=1500), problem, budget_bytes)).tolist())
        assert (random.getstate(), str(np.random.get_state())) == before  # noqa: NPY002
    assert plans[0] == plans[1]


def test_the_hall_of_fame_holds_copies_and_no_plan_twice() -> None:
    search = search_on(chain(4), 3 * MB)
    first, twin, second = scored([0, 1], (0, 2.0)), scored([0, 1], (0, 2.0)), scored([1, 1], (0, 3.0))
    search.hall_of_fame.update([first, twin, second])
    assert [one.genes.tolist() for one in search.hall_of_fame] == [[0, 1], [1, 1]]
    first.genes[0] = 2
    first.fitness.values = (0, 9.0)
    assert search.hall_of_fame[0].genes.tolist() == [0, 1]
    assert search.hall_of_fame[0].values == (0, 2.0)


def test_individuals_can_be_copied_and_sent_elsewhere() -> None:
    # Classes of `creator.create` could not be: they live in a module of DEAP's.
    original = scored([0, 1, 2], (0, 2.0))
    for other in (copy.deepcopy(original), pickle.loads(pickle.dumps(original))):
        assert same_genes(original, other)
        assert other.values == (0, 2.0)
        assert other.genes is not original.genes
    assert not same_genes(original, scored([0, 1, 1], (0, 2.0)))


def test_deap_is_imported_where_a_search_begins_and_no_class_is_created_in_it() -> None:
    code = (
        "import sys\n"
        "import slackswap.planners.genetic.planner as genetic\n"
        "assert not [name for name in sys.modules if name.startswith('deap')]\n"
        "import slackswap.planners.genetic.search\n"
        "assert 'deap.base' in sys.modules and 'deap.creator' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@both
def test_without_deap_the_planner_is_unavailable(planner: Genetic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "slackswap.planners.genetic.search", None)  # so an import of it fails
    outcome = run_planner(planner, small_gpt(), int(0.4 * peak_bytes(small_gpt())))
    assert (outcome.status, outcome.plan) == (Status.UNAVAILABLE, None)
    assert "DEAP" in outcome.reason
