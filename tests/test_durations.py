"""The record of how long tests take."""

import durations


def test_a_folder_beyond_its_bound_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(durations, "RECORD", tmp_path / "durations.json")
    durations.write({"base": 9.6, "hub": 30.2})
    assert durations.RECORD.read_text() == '{\n "base": 10,\n "hub": 30\n}\n'
    # A bound is one and a half times the record, and five seconds more; "new" has no record.
    slower = durations.beyond_bounds({"base": 20.0, "hub": 50.1, "new": 5.0})
    assert [*slower] == ["hub: 50 s of a processor, 30 recorded"]
