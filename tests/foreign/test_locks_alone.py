"""The foreign locks without any filter: they exclude each other, and outlive no holder."""

from __future__ import annotations

import contextlib
import os
import signal
import threading

import pytest
import servers

turns = pytest.importorskip("foreign.turns", exc_type=ImportError)
factories = pytest.importorskip("foreign.factories", exc_type=ImportError)
sql_lock = pytest.importorskip("foreign.sql_lock", exc_type=ImportError)
etcd3gw = pytest.importorskip("etcd3gw")
psycopg = pytest.importorskip("psycopg")
psycopg_pool = pytest.importorskip("psycopg_pool")

pytestmark = [pytest.mark.foreign, pytest.mark.processes]
WORKERS = 4
ROUNDS = 25


@pytest.fixture
def pool(sql):
    """Connections to the SQL server, whose table of locks is empty."""
    with psycopg_pool.ConnectionPool(sql, kwargs={"autocommit": True}) as made:
        with made.connection() as connection:
            connection.execute("DELETE FROM locks")
        yield made


def rows(pool):
    with pool.connection() as connection:
        return connection.execute("SELECT count(*) FROM locks").fetchone()[0]


def count_together(lock, patience):
    """Return the number that all workers together counted to, and whether two were inside."""
    number = turns.PROCESSES.RawValue("i", 0)
    inside, met = turns.PROCESSES.Value("i", 0), turns.PROCESSES.Event()
    with contextlib.ExitStack() as stack:
        arguments = (lock, number, ROUNDS, patience, inside, met)
        workers = [
            stack.enter_context(turns.started(turns.count_up, *arguments)) for _ in range(WORKERS)
        ]
        for worker in workers:
            worker.join(turns.PATIENCE)
            assert worker.exitcode == 0
    return number.value, met.is_set()


def test_only_one_process_at_a_time_is_inside(system):
    counted, met = count_together(system, 0.002)
    assert (counted, met) == (WORKERS * ROUNDS, False)


def test_without_a_lock_two_are_inside():
    # The control: the same processes meet.
    _, met = count_together(("none", None), turns.PATIENCE)
    assert met


def test_only_one_is_inside_while_a_sweeper_runs(sql, pool):
    with sql_lock.Sweeper(pool, 0.001):
        counted, met = count_together(("sql", sql), 0.002)
    assert (counted, met) == (WORKERS * ROUNDS, False)
    assert rows(pool) == 0


def test_a_killed_holder_keeps_nobody_out(system):
    entered, leave, told = make_signals()
    with turns.started(turns.hold, system, 2, entered, leave, told) as holder:
        assert entered.wait(turns.PATIENCE)
        os.kill(holder.pid, signal.SIGKILL)
        holder.join()
    with factories.open_factory(*system) as factory, factory("one"):
        pass


def make_signals():
    return turns.PROCESSES.Event(), turns.PROCESSES.Event(), turns.PROCESSES.Queue()


def test_a_holder_that_slept_through_its_lease_is_told_and_harms_nobody(system):
    entered, leave, told = make_signals()
    with turns.started(turns.hold, system, 2, entered, leave, told) as holder:
        assert entered.wait(turns.PATIENCE)
        os.kill(holder.pid, signal.SIGSTOP)
        # Leaving raises nothing here: the sleeper did not take the lock of the second holder.
        with factories.open_factory(*system) as factory, factory("one"):
            os.kill(holder.pid, signal.SIGCONT)
            leave.set()
            assert told.get(timeout=turns.PATIENCE) in {
                *("SessionExpiredError", "EtcdLockLostError", "SqlLockLostError")
            }


def test_an_interrupted_waiter_leaves_nothing_in_the_way(system):
    asking, leave, told = make_signals()
    with factories.open_factory(*system) as factory, contextlib.ExitStack() as stack:
        with factory("one"):
            waiter = stack.enter_context(
                turns.started(turns.be_interrupted, system, asking, leave, told)
            )
            turns.wait_asking(asking)
            os.kill(waiter.pid, signal.SIGINT)
            assert told.get(timeout=turns.PATIENCE) == "interrupted"
        with factory("one"):
            assert waiter.is_alive()


def test_a_body_that_fails_gives_the_lock_back(system):
    with factories.open_factory(*system, 300) as factory:
        for _ in range(2):
            with pytest.raises(KeyError, match="of the body"), factory("one"):
                raise KeyError("of the body")


def test_a_sweeper_removes_what_a_killed_holder_left(sql, pool):
    entered, leave, told = make_signals()
    with turns.started(turns.hold, ("sql", sql), 1, entered, leave, told) as holder:
        assert entered.wait(turns.PATIENCE)
        os.kill(holder.pid, signal.SIGKILL)
        holder.join()
    assert rows(pool) == 1
    with sql_lock.Sweeper(pool, 0.05):
        servers.wait_until(lambda: rows(pool) == 0)


def test_a_sweeper_leaves_the_living_alone(pool):
    with sql_lock.SqlLock(pool, "held"):
        assert sql_lock.sweep(pool) == 0
        with pytest.raises(sql_lock.SqlLockTimeoutError, match=r"no lock 'held' within 0.1 s"):
            sql_lock.SqlLock(pool, "held", timeout=0.1).__enter__()
    assert rows(pool) == 0


def test_an_expired_row_is_taken_over_without_a_sweeper(pool):
    one, other = sql_lock.SqlLock(pool, "row", ttl=0.05), sql_lock.SqlLock(pool, "row")
    one.__enter__()
    with other:
        assert one.fence < other.fence
        with pytest.raises(sql_lock.SqlLockLostError, match="'row' was lost while it was held"):
            one.__exit__(None, None, None)
        assert rows(pool) == 1
    assert rows(pool) == 0


def test_fences_rise_though_the_row_is_deleted_each_time(pool):
    fences = []
    for _ in range(20):
        with sql_lock.SqlLock(pool, "fenced") as held:
            fences.append(held.fence)
    assert fences == sorted(set(fences))


def test_a_fence_drawn_while_it_waited_is_not_below_that_of_the_holder(sql, pool):
    holder = sql_lock.SqlLock(pool, "slow")._row
    later = []

    def take():
        with sql_lock.SqlLock(pool, "slow") as held:
            later.append(held.fence)

    def waits():
        with pool.connection() as connection:
            waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            return connection.execute(waiting).fetchone()

    with psycopg.connect(sql) as transaction:
        transaction.execute(sql_lock._TAKE, holder)
        waiter = threading.Thread(target=take)
        waiter.start()
        servers.wait_until(waits)
        fence = transaction.execute(sql_lock._TAKE, holder).fetchone()[0]
        transaction.execute(sql_lock._GIVE_BACK, holder)
    waiter.join()
    assert later[0] > fence


def test_the_bodys_own_error_is_not_hidden_by_a_lost_row(pool):
    with pytest.raises(KeyError), sql_lock.SqlLock(pool, "row") as held:
        held._give_back()
        raise KeyError


def test_the_with_of_etcd3gw_lets_a_second_one_in(etcd):
    # Why the factory does not use it.
    client = etcd3gw.Etcd3Client("127.0.0.1", etcd, timeout=30)
    with client.lock("trap", ttl=30) as one, client.lock("trap", ttl=30) as two:
        assert (one.is_acquired(), two.is_acquired()) == (True, False)


def test_a_lease_of_etcd_that_ended_in_the_queue_is_not_taken_for_a_lock(etcd):
    client = etcd3gw.Etcd3Client("127.0.0.1", etcd, timeout=60)
    failed = []

    def wait():
        mine = etcd3gw.Etcd3Client("127.0.0.1", etcd, timeout=60)
        try:
            with factories.etcd_lock(mine, "queue", 2):
                failed.append(None)
        except factories.EtcdLockLostError as error:
            failed.append(str(error))

    def leases():
        found = client.post(client.get_url("/lease/leases"), json={}).get("leases", ())
        return {lease["ID"] for lease in found}

    with factories.etcd_lock(client, "queue", 60):
        before = leases()
        waiter = threading.Thread(target=wait)
        waiter.start()
        servers.wait_until(lambda: leases() - before)
        waiting = leases() - before
        servers.wait_until(lambda: not leases() & waiting)
    waiter.join()
    assert failed == ["the lease ended before the lock 'queue' was obtained"]
