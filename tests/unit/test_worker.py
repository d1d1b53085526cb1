"""The parts of a worker that need neither a database nor a clock."""

from bot.serve.worker import Pulse


class Clock:
    """A clock that a test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_node_judges_others_only_after_it_was_heard_without_a_gap_for_the_whole_timeout() -> None:
    clock = Clock()
    pulse = Pulse(60, clock)
    assert not pulse.is_steady, "not heard yet"
    heard_for_the_whole_timeout(pulse, clock)  # a process that starts waits for the others too

    clock.now += 61
    assert not pulse.is_steady, "the database is away"
    heard_for_the_whole_timeout(pulse, clock)


def heard_for_the_whole_timeout(pulse: Pulse, clock: Clock) -> None:
    pulse.beat()
    assert not pulse.is_steady, "others are just coming back"
    for _ in range(6):
        clock.now += 9
        pulse.beat()
        assert not pulse.is_steady
    clock.now += 6
    assert pulse.is_steady
