from __future__ import annotations

from shared_data import shared_file

from models.reference_event_model import reference_score


def test_a() -> None:
    assert callable(reference_score)
    assert callable(shared_file)
