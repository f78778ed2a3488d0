"""Genetic search over plans with DEAP, seeded or random."""
