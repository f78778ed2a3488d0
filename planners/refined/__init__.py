"""The refined planner: local search over plans with exact accounts of link and memory."""
