"""Variation operators of the genetic search: random plans, crossover, mutation, each for a whole table of plans at once.

A *gene* is the decision of one saved tensor, in order of production; a table holds a plan per row. Operators return new
tables or change the table that they are given in place, draw from the generator that they are given, and never make an
illegal plan: a tensor without a rebuild has two choices, the others three.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from slackswap.models.plan import KEEP, SWAP, DecisionArray
from slackswap.models.problem import BoolArray, IntArray, Problem

# Shares of the mutations; the measurements behind them are in `slackswap.planners.genetic.planner`.
EXCHANGE, FLIP, RUN, BLOCK = range(4)
_MUTATION_SHARES = np.array([8.0, 2.0, 3.0, 1.5])
_STOP_MUTATING, _MOST_MUTATIONS = 0.6, 4  # chance to stop after each mutation
_KINDS_CROSSED = 0.4  # of a crossover by kinds
_EXCHANGED_ALIKE = 0.5  # of the exchanges are between tensors of equal size
_PARTNERS_TRIED = 4


class Genes(NamedTuple):
    """What variation reads of a problem with g saved tensors.

    Attributes
    ----------
    tensors : (g,) the saved tensors, ascending
    n_choices : (g,) 3, or 2 where the tensor has no rebuild
    kinds : tensors of equal size and recompute cost: those that repeat from layer to layer
    sizes : tensors of equal size
    block_start : (b + 1,) genes at which blocks begin, and g
    """

    tensors: IntArray
    n_choices: DecisionArray
    kinds: Groups
    sizes: Groups
    block_start: IntArray


class Groups(NamedTuple):
    """A partition of the genes: group c holds ``members[start[c] : start[c] + n_members[c]]``, ascending.

    `label` and `rank` say for each gene its group and its place there.
    """

    label: IntArray
    members: IntArray
    start: IntArray
    n_members: IntArray
    rank: IntArray


def genes_of(problem: Problem) -> Genes:
    """Return the genes of a problem; it has one tensor at least that is saved."""
    tensors = np.flatnonzero(problem.saved)
    sizes, costs = problem.tensor_bytes[tensors], problem.rebuild_s[tensors]
    block = problem.block[tensors]
    changes = np.flatnonzero(block[1:] != block[:-1]) + 1
    # Without blocks, every gene is one.
    inner = changes if changes.size else np.arange(1, tensors.size)
    return Genes(
        tensors=tensors,
        n_choices=np.where(problem.rebuildable[tensors], 3, 2).astype(np.int8),
        kinds=_groups(np.unique(np.stack((sizes, costs)), axis=1, return_inverse=True)[1].ravel()),
        sizes=_groups(np.unique(sizes, return_inverse=True)[1].ravel()),
        block_start=np.concatenate(([0], inner, [tensors.size])).astype(np.int64),
    )


def _groups(label: IntArray) -> Groups:
    members = np.argsort(label, kind="stable")
    count = np.bincount(label)
    start = np.concatenate(([0], np.cumsum(count)[:-1]))
    rank = np.empty_like(members)
    rank[members] = np.arange(label.size) - np.repeat(start, count)
    return Groups(label, members, start, count, rank)


def plans_of(problem: Problem, genes: Genes, table: DecisionArray) -> DecisionArray:
    """Return the plans of a (k, g) table as (k, m) decisions: what is not saved is kept."""
    rows = np.full((len(table), problem.n_tensors), KEEP, np.int8)
    rows[:, genes.tensors] = table
    return rows


def random_plans(genes: Genes, count: int, rng: np.random.Generator) -> DecisionArray:
    """Return random plans, each with shares of keep, swap and recompute of its own, uniform among all shares.

    With one third each, as the decisions of uniformly random plans have, no plan of the paper's workloads fits in 20%.
    """
    shares = rng.dirichlet((1.0, 1.0, 1.0), size=count)
    swap_from, recompute_from = np.cumsum(shares[:, :2], axis=1).T[:, :, np.newaxis]
    drawn = rng.random((count, genes.tensors.size))
    table = ((drawn >= swap_from).astype(np.int8) + (drawn >= recompute_from)).astype(np.int8)
    # Where recomputation is no choice, its share is divided between the others.
    coin = rng.integers(0, 2, size=table.shape, dtype=np.int8)
    legal: DecisionArray = np.where(table >= genes.n_choices, coin, table)
    return legal


def cross(genes: Genes, mothers: DecisionArray, fathers: DecisionArray, rng: np.random.Generator) -> DecisionArray:
    """Return children that have a part of their genes from the father, row by row, and the rest from the mother.

    Half of them take the tensors of some kinds: which kinds are swapped or recomputed is what good plans share. The others
    take a stretch of the iteration, from block to block or from any tensor to any other.
    """
    from_father = _stretches(genes, len(mothers), rng)
    by_kind = np.flatnonzero(rng.random(len(mothers)) < 0.5)
    kinds = rng.random((by_kind.size, genes.kinds.n_members.size)) < _KINDS_CROSSED
    from_father[by_kind] = kinds[:, genes.kinds.label]
    return np.where(from_father, fathers, mothers)


def _stretches(genes: Genes, count: int, rng: np.random.Generator) -> BoolArray:
    n_genes = genes.tensors.size
    anywhere = rng.integers(0, n_genes + 1, size=(count, 2))
    blocks = genes.block_start[rng.integers(0, genes.block_start.size, size=(count, 2))]
    ends = np.sort(np.where(rng.random((count, 1)) < 0.5, blocks, anywhere), axis=1)
    position = np.arange(n_genes)
    inside: BoolArray = (position >= ends[:, :1]) & (position < ends[:, 1:])
    return inside


def mutate(genes: Genes, table: DecisionArray, rng: np.random.Generator) -> DecisionArray:
    """Change each row of `table` in place by one mutation or more, and return it.

    - *Exchange* the decisions of two tensors, half of the time of equal size: then as much memory is freed as before.
    - *Flip* one decision.
    - Decide alike a *run* of tensors of one kind, neighbours among their kind.
    - Copy a *block*'s decisions to another block.
    """
    wanted = np.minimum(rng.geometric(_STOP_MUTATING, size=len(table)), _MOST_MUTATIONS)
    bounds = np.cumsum(_MUTATION_SHARES / _MUTATION_SHARES.sum())[:-1]
    for done in range(int(wanted.max(initial=0))):
        rows = np.flatnonzero(wanted > done)
        mutation = np.searchsorted(bounds, rng.random(rows.size), side="right")
        gene = rng.integers(0, genes.tensors.size, size=rows.size)
        for kind, change in enumerate((_exchange, _flip, _decide_run, _copy_block)):
            chosen = mutation == kind
            change(genes, table, rows[chosen], gene[chosen], rng)
    return table


def _exchange(genes: Genes, table: DecisionArray, rows: IntArray, gene: IntArray, rng: np.random.Generator) -> None:
    sizes, n_genes = genes.sizes, genes.tensors.size
    group = sizes.label[gene]
    drawn = rng.random((_PARTNERS_TRIED, rows.size))
    alike = sizes.members[sizes.start[group] + (drawn * sizes.n_members[group]).astype(np.int64)]
    candidates = np.where(rng.random(rows.size) < _EXCHANGED_ALIKE, alike, (drawn * n_genes).astype(np.int64))
    partner = gene
    for candidate in candidates:
        partner = np.where(table[rows, partner] == table[rows, gene], candidate, partner)
    own, other = table[rows, gene], table[rows, partner]
    exchanged = (own != other) & (own < genes.n_choices[partner]) & (other < genes.n_choices[gene])
    table[rows[exchanged], gene[exchanged]] = other[exchanged]
    table[rows[exchanged], partner[exchanged]] = own[exchanged]
    # No partner that decides otherwise: a mutation changes something all the same.
    _flip(genes, table, rows[~exchanged], gene[~exchanged], rng)


def _flip(genes: Genes, table: DecisionArray, rows: IntArray, gene: IntArray, rng: np.random.Generator) -> None:
    n_choices = genes.n_choices[gene]
    table[rows, gene] = (table[rows, gene] + rng.integers(1, n_choices, dtype=np.int8)) % n_choices


def _decide_run(genes: Genes, table: DecisionArray, rows: IntArray, gene: IntArray, rng: np.random.Generator) -> None:
    kinds = genes.kinds
    kind, first = kinds.label[gene], kinds.rank[gene]
    # Half of a small kind on average, at most 20 tensors of a large one. The genes of a kind have the same choices.
    length = rng.geometric(np.minimum(1.0, 2.0 / kinds.n_members[kind] + 0.05))
    decision = rng.integers(0, genes.n_choices[gene], dtype=np.int8)
    rank = kinds.rank - first[:, np.newaxis]
    inside = (kinds.label == kind[:, np.newaxis]) & (rank >= 0) & (rank < length[:, np.newaxis])
    table[rows] = np.where(inside, decision[:, np.newaxis], table[rows])


def _copy_block(genes: Genes, table: DecisionArray, rows: IntArray, gene: IntArray, rng: np.random.Generator) -> None:
    start = genes.block_start
    target = np.searchsorted(start, gene, side="right") - 1
    source = rng.integers(0, start.size - 1, size=rows.size)
    position = np.arange(genes.tensors.size)
    shifted = position + (start[source] - start[target])[:, np.newaxis]
    inside = (position >= start[target, np.newaxis]) & (position < start[target + 1, np.newaxis])
    inside &= shifted < start[source + 1, np.newaxis]  # blocks may differ in length
    copied = np.take_along_axis(table[rows], np.clip(shifted, 0, position.size - 1), axis=1)
    # A tensor that cannot be recomputed is swapped where the one that it follows is recomputed.
    copied = np.where(copied < genes.n_choices, copied, np.int8(SWAP))
    table[rows] = np.where(inside, copied, table[rows])
