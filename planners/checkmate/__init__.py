"""Checkmate-style rematerialization: optimal schedules without swaps, by stages that are refined, and by retention intervals."""
