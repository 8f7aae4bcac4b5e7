"""The judge of the peers' logs finds every fault that a log can show, and none in a sound one."""

from __future__ import annotations

import pytest

from bench.peers import judge

SOUND = """\
sent t1 a 10
accepted t1 a 10 12
sent t1 b 20
accepted t1 b 20 22
sent t2 c 25
accepted t2 c 25 27
begin t1 a 30 7 a
begin t2 c 31 8 c
end t1 a 40 7 a
end t2 c 45 8 c
begin t1 b 50 8 b
end t1 b 60 8 b
"""


def faults(text: str) -> dict[str, int]:
    """What is found, by name, where it is not 0."""
    log = judge.read(text)
    counts = (judge.overlaps, judge.out_of_order, judge.duplicates, judge.missing)
    return {count.__name__: found for count in counts if (found := count(log))}


def test_sound_log_shows_no_fault() -> None:
    log = judge.read(SOUND)
    assert faults(SOUND) == {}
    assert judge.turns(log) == 3
    assert judge.hand_offs(log) == [pytest.approx(10e-9)]
    assert judge.latencies(log, cut=100) == [pytest.approx(20e-9), pytest.approx(30e-9), pytest.approx(6e-9)]
    assert judge.rate(log) == pytest.approx(3 / 30e-9)


def test_two_handlers_at_once_are_an_overlap() -> None:
    assert faults(SOUND.replace("begin t1 b 50", "begin t1 b 39")) == {"overlaps": 1}


def test_handler_inside_an_earlier_longer_one_is_an_overlap() -> None:
    text = SOUND.replace("end t1 a 40", "end t1 a 90")
    assert faults(text + "begin t1 d 70 8 d\nend t1 d 80 8 d\naccepted t1 d 65 66\nsent t1 d 65\n") == {"overlaps": 2}


def test_handler_of_another_thread_is_no_overlap_and_has_no_order() -> None:
    assert faults(SOUND.replace("begin t2 c 31", "begin t2 c 29")) == {}


def test_handler_without_an_end_runs_on() -> None:
    assert faults(SOUND.replace("end t1 a 40 7 a\n", "")) == {"overlaps": 1, "missing": 1}


def test_killed_handler_ends_with_its_process() -> None:
    killed = SOUND.replace("end t1 a 40 7 a\n", "killed 7 40\n")
    assert faults(killed) == {"missing": 1}
    assert faults(killed + "begin t1 a 70 8 a\nend t1 a 80 8 a\n") == {}


def test_later_message_first_is_out_of_order() -> None:
    swapped = SOUND.replace("begin t1 b 50 8 b\nend t1 b 60 8 b\n", "begin t1 b 28 8 b\nend t1 b 29 8 b\n")
    assert faults(swapped) == {"out_of_order": 1}


def test_messages_handed_in_at_once_have_no_order() -> None:
    both = SOUND.replace("accepted t1 a 10 12", "accepted t1 a 10 21").replace("begin t1 a 30", "begin t1 a 61")
    assert faults(both.replace("end t1 a 40", "end t1 a 62")) == {}


def test_message_handled_twice_is_a_duplicate_and_two_turns() -> None:
    twice = SOUND + "begin t1 a 70 8 a\nend t1 a 80 8 a\n"
    assert faults(twice) == {"duplicates": 1}
    assert judge.turns(judge.read(twice)) == 4


def test_message_that_nobody_handled_is_missing_and_has_waited_until_the_cut() -> None:
    lost = SOUND.replace("begin t2 c 31 8 c\n", "").replace("end t2 c 45 8 c\n", "")
    assert faults(lost) == {"missing": 1}
    assert max(judge.latencies(judge.read(lost), cut=1_025)) == pytest.approx(1_000e-9)


def test_messages_of_one_turn_are_no_hand_off() -> None:
    log = judge.read(SOUND.replace("40 7 a", "40 7 9").replace("30 7 a", "30 7 9").replace("8 b", "7 9"))
    assert judge.hand_offs(log) == []
    assert judge.turns(log) == 2


def test_line_that_is_being_written_is_left_out_and_an_unknown_one_refused() -> None:
    assert judge.read(SOUND + "begin t1 a 7").handlings == judge.read(SOUND).handlings
    with pytest.raises(ValueError, match="no such line"):
        judge.read("started t1 a 10\n")
