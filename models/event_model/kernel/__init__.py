"""The event model's compiled engine; rule numbers in its comments are those of `slackswap.models.event_model`."""
