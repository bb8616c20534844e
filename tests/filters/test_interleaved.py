"""What threads may do to each other, made to happen: cores driven by hand, request by request."""

from __future__ import annotations

import pytest
from proxy import HANDSHAKE, Proxy

from bloomlock import BloomFilter, FilterLostError
from bloomlock.filters import answers


class ByHand:
    """A core of a filter of which each request is carried out when asked for."""

    def __init__(self, made, core):
        self._made = made
        self._core = core
        self._step = next(core)
        self.result = None

    def carry_out(self):
        """Carry out the request that is due; the core has not seen its replies yet."""

        def one(step):
            return (yield step)

        self._replies = self._made._runtime.run(one(self._step))

    def go_on(self):
        """Give the core its replies; False if it has ended."""
        try:
            self._step = self._core.send(self._replies)
        except StopIteration as stop:
            self.result = stop.value
            return False
        return True

    def finish(self):
        """Carry out the rest, the replies to the last request being there."""
        while self.go_on():
            self.carry_out()
        return self.result


@pytest.mark.parametrize("counted", [True, False])
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("strategy", ["atomic", "pipeline"])
def test_a_clear_half_way_is_no_loss_to_other_threads(r, shards, strategy, counted):
    made = BloomFilter("x", 2000, 1e-9, client=r, shards=shards, strategy=strategy)
    made.add("before")
    clear = ByHand(made, made._state.clear())
    items = []
    for number in range(100):
        item = f"item {number}"
        items.append(item)
        if counted:
            made.count()
        assert made.add(item) is True
        assert made.exists_many([item, "nothing"]) == [True, False]
        clear.carry_out()
        if not clear.go_on():
            break
    assert made.add("after") is True
    there = made.exists_many(items)
    # What was added before the bits were emptied is gone, all else is there.
    assert not there[0]
    if shards == 1:
        assert there == sorted(there)
    assert not made.exists("before")
    assert made.exists("after")


def test_a_slow_thread_does_not_lose_what_another_attached_to(r):
    made = BloomFilter("x", 2000, 1e-9, client=r)
    other = BloomFilter.open("x", client=r)
    other.clear()
    slow = ByHand(made, answers.add(made._state, "item"))
    slow.carry_out()
    other.clear()
    made.reattach()
    # Its bits were set in a generation that came and went.
    assert slow.finish() is True
    assert made.add("item") is False
    assert made.add("another") is True


@pytest.mark.parametrize("many", [False, True])
def test_a_clear_forgets_no_item_that_was_told_to_nobody(r, many):
    made = BloomFilter("x", 2000, 1e-9, client=r)
    clear = ByHand(made, made._state.clear())
    clear.carry_out()
    while made.generation == BloomFilter.open("x", client=r).generation:
        assert clear.go_on()
        clear.carry_out()
    BloomFilter.open("x", client=r).clear()

    def add():
        return made.add_many(["a", "item", "item"])[1] if many else made.add("item")

    with pytest.raises(FilterLostError):
        add()
    clear.finish()
    # The clear has attached to what another client replaced meanwhile.
    with pytest.raises(FilterLostError):
        add()
    made.reattach()
    assert add() is True
    assert add() is False


@pytest.mark.parametrize("on_lost", ["raise", "recreate"])
def test_a_batch_cut_by_two_clears_loses_no_item(r, valkey, on_lost):
    """Another thread attaches between the clears, so the batch follows to the first of them."""
    with Proxy(valkey) as proxy:
        made = BloomFilter("x", 200_000, 1e-9, client=proxy.url, on_lost=on_lost, num_hashes=24)
        other = BloomFilter.open("x", client=r, on_lost="recreate")
        direct = BloomFilter.open("x", client=r)
        items = [str(number) for number in range(200)]
        commands = []

        def judge(name, _number):
            if name not in HANDSHAKE:
                commands.append(name)
                if len(commands) == 2:
                    other.clear()
                    direct._runtime.run(made._state.attach())
                if len(commands) == 4:
                    other.clear()
            return "pass"

        proxy.judge = judge
        try:
            told = made.add_many(items)
        except FilterLostError as error:
            assert on_lost == "raise"
            told = error.results
            made.reattach()
        assert len(commands) > 4
        told += [None] * (len(items) - len(told))
        # Nobody else has offered any of them.
        assert False not in told
        left = [item for item, new in zip(items, told, strict=True) if new is None]
        assert made.add_many(left) == [True] * len(left)
        made.close()


@pytest.mark.parametrize("count", [1, 3, 200])
@pytest.mark.parametrize("strategy", ["atomic", "lua", "transaction", "lock"])
def test_an_answer_on_its_way_reports_what_is_not_reported_yet(r, strategy, count):
    """Another thread attaches to the next generation before the answer is read."""
    items = [str(number) for number in range(count)]
    reported = 0
    for point in range(100):
        r.flushall()
        made = BloomFilter("x", 2000, client=r, strategy=strategy)
        other = BloomFilter.open("x", client=r)
        other.update(items)
        made._state.unreported.remember(made._state.view.header, [item.encode() for item in items])
        core = answers.add_many(made._state, items)
        adding = ByHand(made, core if count > 1 else answers.add(made._state, items[0]))
        for _ in range(point):
            adding.carry_out()
            if not adding.go_on():
                break
        else:
            adding.carry_out()
            other.clear()
            made.reattach()
            try:
                assert adding.finish() in (True, [True] * count)
                reported += 1
            except FilterLostError:
                # It met the next generation first.
                pass
            continue
        break
    assert reported


@pytest.mark.parametrize("sent", range(1, 5))
def test_a_clear_between_the_commands_of_a_look_is_no_loss(r, sent):
    """A client attaches while another one clears: each command may be answered before or after."""
    made = BloomFilter("x", 2000, client=r)
    other = BloomFilter.open("x", client=r)
    attach = ByHand(made, made._state.attach())
    commands = attach._step.commands

    def part(commands):
        return (yield attach._step._replace(commands=commands))

    attach._replies = made._runtime.run(part(commands[:sent]))
    other.clear()
    attach._replies += made._runtime.run(part(commands[sent:]))
    attach.finish()
    assert made.generation == other.generation
    assert made.add("a")
