"""``stats="amqp"``: batches wait in a real RabbitMQ, and each is counted once, whoever is killed or not answered."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kombu
import pytest

from headrace import Headrace
from headrace.errors import BrokerUnavailable, HeadraceError, SettingsError
from headrace.stats import Stats
from headrace.stats.broker import BrokerConsumer
from headrace.stats.buffer import LINE_ROWS
from tests.brokers import Rabbit, is_debian
from tests.deadline import eventually
from tests.program import Program
from tests.proxy import Proxy

pytestmark = [
    pytest.mark.system,
    # A first run fetches the broker.
    pytest.mark.timeout(600),
    pytest.mark.skipif(not is_debian(), reason="RabbitMQ is taken from Debian's packages, and this is not Debian"),
]

Make = Callable[..., Stats]
QUEUE = "headrace.hr.stats"
# A confirmation, or what tells that a message was taken: Basic.Ack, in a frame of a method.
ACK = b"\x00\x3c\x00\x50"


@pytest.fixture(scope="module")
def started_rabbit(nothing_left_running: None) -> Iterator[Rabbit]:
    broker = Rabbit()
    yield broker
    broker.stop()


@pytest.fixture
def rabbit(started_rabbit: Rabbit) -> Iterator[Rabbit]:
    """The broker, without a queue."""
    started_rabbit.start()
    yield started_rabbit
    started_rabbit.resume()
    started_rabbit.start()
    delete(started_rabbit)


def delete(broker: Rabbit) -> None:
    with kombu.Connection(broker.url) as connection:
        connection.channel().queue_delete(QUEUE)


@pytest.fixture
def counting(make_stats: Make, rabbit: Rabbit) -> Make:
    def make(**settings: Any) -> Stats:
        return make_stats(**{"stats": "amqp", "stats_broker": rabbit.url, "timeout": 20.0} | settings)

    return make


@pytest.fixture
def taker(counting: Make) -> Iterator[Callable[..., BrokerConsumer]]:
    made: list[BrokerConsumer] = []

    def make(**settings: Any) -> BrokerConsumer:
        found = counting(**settings).consumer()
        assert isinstance(found, BrokerConsumer)
        made.append(found)
        return found

    yield make
    for one in made:
        one.close()


def total(stats: Stats, label: str = "a", field: str = "n") -> int:
    return stats.find(label, time.time() - 3600)[field]


def emptied(taker: BrokerConsumer, least: int = 0) -> int:
    """Take all that waits; how many batches those were.

    Args:
        least: so many come: what is on its way to us is not told as waiting any more.
    """
    count = 0

    def done() -> bool:
        nonlocal count
        step = taker.step()
        count += step.batches
        return count >= least and not step.waiting

    eventually(done, 60, what=f"{least} batches come")
    return count


def count(stats: Stats, number: int) -> None:
    """Each batch another power of two, so that any that is missing or doubled shows."""
    for n in range(number):
        stats.add("a", {"n": 1 << n})
        stats.flush()


def test_counts_are_there_when_they_were_consumed(counting: Make, taker: Callable[..., BrokerConsumer]) -> None:
    stats = counting()
    count(stats, 5)
    stats.observe("a/b", {"s": 1.0})
    stats.flush()
    assert (total(stats), stats.lag().waiting, stats.pending) == (0, 6, 0)
    consumer = taker()
    assert emptied(consumer, 6) == 6
    consumer.close()
    line = stats.lag()
    assert (total(stats), line.waiting, line.oldest, line.lost) == (31, 0, 0, 0)
    assert stats.find("a", time.time() - 60).total().histogram("s").count == 1
    assert line.taken > 0
    stats.add("a", {"n": 1})
    stats.flush()
    assert stats.lag().oldest == line.upto > 0


def test_what_was_confirmed_survives_a_kill(
    rabbit: Rabbit, counting: Make, taker: Callable[..., BrokerConsumer]
) -> None:
    stats = counting()
    count(stats, 5)
    # RabbitMQ answers a declaration before a file holds the whole of it: a queue this young may not come back. The file
    # has it once it has a later one.
    later = f"later-{time.monotonic_ns()}"
    with kombu.Connection(rabbit.url) as connection:
        connection.channel().queue_declare(later, durable=True, auto_delete=False)
    eventually(lambda: rabbit.stores(later))
    rabbit.kill()
    stats.add("a", {"n": 32})
    with pytest.raises(BrokerUnavailable, match="does not answer"):
        stats.flush()
    assert stats.pending == 1
    rabbit.start()
    stats.flush()
    assert emptied(taker(), 6) == 6
    assert total(stats) == 63


def test_a_batch_that_was_not_confirmed_is_counted_once(
    rabbit: Rabbit, counting: Make, taker: Callable[..., BrokerConsumer]
) -> None:
    with Proxy(rabbit) as proxy:  # type: ignore[arg-type]
        stats = counting(stats_broker=f"amqp://guest:guest@127.0.0.1:{proxy.port}//")
        count(stats, 1)
        for n in range(1, 8):
            stats.add("a", {"n": 1 << n})
            proxy.lose_replies(1 + n % 2, when=lambda piece: ACK in piece)
            while stats.pending:
                try:
                    stats.flush()
                except BrokerUnavailable:
                    continue
        assert proxy.lost > 7
        assert stats.lag().waiting > 8
        emptied(taker(), stats.lag().waiting)
        assert (total(stats), stats.lag().waiting) == (255, 0)
        stats.close()


def test_a_broker_that_hangs_is_given_up_and_asked_again(
    rabbit: Rabbit, counting: Make, taker: Callable[..., BrokerConsumer]
) -> None:
    stats = counting(timeout=0.3)
    stats.add("a", {"n": 1})
    eventually(lambda: flushed(stats))
    rabbit.pause()
    stats.add("a", {"n": 2})
    for _ in range(3):
        with pytest.raises(BrokerUnavailable):
            stats.flush()
    stats.add("a", {"n": 4})
    rabbit.resume()
    eventually(lambda: flushed(stats))
    # Read with more time than the broker has.
    reader = counting()
    eventually(lambda: emptied(taker()) == 0 and total(reader) == 7)


@pytest.mark.timeout(60, func_only=True)
def test_a_connection_to_a_broker_that_hangs_is_left_without_waiting(rabbit: Rabbit, counting: Make) -> None:
    """The answer to a farewell would hold up a flush for another ``timeout``."""
    stats = counting(timeout=3600.0)
    count(stats, 1)
    rabbit.pause()
    broker = stats._writer.broker
    assert broker is not None
    broker.drop()
    rabbit.resume()
    count(stats, 1)


def flushed(stats: Stats) -> bool:
    try:
        stats.flush()
    except HeadraceError:
        return False
    return not stats.pending


def test_a_full_queue_leaves_counts_with_the_program(counting: Make, taker: Callable[..., BrokerConsumer]) -> None:
    """RS15: they go on merging, nothing is lost."""
    settings = {"stats_stream_max": 2}
    stats = counting(**settings)
    count(stats, 6)
    assert stats.lag().waiting == 2
    assert stats.pending > 0
    consumer = taker(**settings)
    eventually(lambda: (emptied(consumer), flushed(stats), total(stats))[2] == 63, 20)
    assert stats.lag().lost == 0


def test_a_refusal_after_a_lost_confirmation_is_not_believed(
    rabbit: Rabbit, counting: Make, taker: Callable[..., BrokerConsumer]
) -> None:
    """The first copy may be what fills the queue: merged into the next batch, it would be counted twice."""
    with Proxy(rabbit) as proxy:  # type: ignore[arg-type]
        settings = {"stats_stream_max": 1}
        stats = counting(**settings, stats_broker=f"amqp://guest:guest@127.0.0.1:{proxy.port}//")
        assert stats.lag().waiting == 0
        proxy.lose_replies(1, when=lambda piece: ACK in piece)
        stats.add("a", {"n": 1})
        with pytest.raises(BrokerUnavailable, match="may be in it"):
            stats.flush()
        stats.add("a", {"n": 2})
        consumer = taker(**settings)
        eventually(lambda: (emptied(consumer), flushed(stats), emptied(consumer), stats.pending)[3] == 0, 20)
        assert total(stats) == 3
        stats.close()


def test_a_part_that_was_confirmed_is_not_sent_again(
    counting: Make, taker: Callable[..., BrokerConsumer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the second message of a batch was not answered, a queue that is full now would refuse the first one."""
    settings = {"stats_stream_max": 1}
    stats = counting(**settings)
    for n in range(LINE_ROWS + 1):
        stats.add(f"a/{n}", {"n": 1})
    broker = stats._writer.broker
    assert broker is not None
    publish, sent = broker._publish, list[bool]()

    def unanswered(*args: Any) -> bool:
        if sent:
            raise TimeoutError
        sent.append(publish(*args))
        return sent[0]

    monkeypatch.setattr(broker, "_publish", unanswered)
    with pytest.raises(BrokerUnavailable):
        stats.flush()
    monkeypatch.setattr(broker, "_publish", publish)
    assert (sent, stats.lag().waiting) == ([True], 1)
    consumer = taker(**settings)
    eventually(lambda: (flushed(stats), emptied(consumer), stats.pending)[2] == 0, 20)
    assert (total(stats), stats.lag().waiting) == (LINE_ROWS + 1, 0)


def test_a_full_queue_drops_the_oldest_if_told_to(counting: Make, taker: Callable[..., BrokerConsumer]) -> None:
    """RS15."""
    settings = {"stats_stream_max": 2, "stats_overflow": "drop_oldest"}
    stats = counting(**settings)
    count(stats, 5)
    assert (stats.lag().waiting, stats.pending) == (2, 0)
    consumer = taker(**settings)
    emptied(consumer, 2)
    assert (total(stats), stats.lag().lost) == (8 + 16, 3)
    # One that stands by would fetch them before they are too many.
    consumer.close()
    count(stats, 5)
    emptied(consumer, 2)
    assert stats.lag().lost == 6


def test_a_consumer_that_dies_before_it_acknowledged_counts_nothing_twice(
    rabbit: Rabbit, counting: Make, taker: Callable[..., BrokerConsumer], monkeypatch: pytest.MonkeyPatch
) -> None:
    stats = counting()
    count(stats, 6)
    with Proxy(rabbit) as proxy:  # type: ignore[arg-type]
        first = taker(stats_broker=f"amqp://guest:guest@127.0.0.1:{proxy.port}//")
        run = first._client.run

        def counted(call: Any) -> Any:
            reply = run(call)
            proxy.drop()
            return reply

        monkeypatch.setattr(first._client, "run", counted)
        # Whether the acknowledgement fails, or is sent into the void and the next question fails.
        eventually(lambda: broke(first), 20)
        assert total(stats) == 63
        monkeypatch.setattr(first._client, "run", run)
        emptied(first)
        assert (total(stats), stats.lag().waiting) == (63, 0)
        first.close()


def broke(taker: BrokerConsumer) -> bool:
    try:
        taker.step()
    except BrokerUnavailable:
        return True
    return False


def test_one_of_several_consumers_counts_and_another_follows(
    counting: Make, taker: Callable[..., BrokerConsumer]
) -> None:
    stats, one, other = counting(), taker(), taker()
    count(stats, 3)
    assert emptied(one, 3) == 3
    count(stats, 1)
    assert other.step().batches == 0
    one.close()
    eventually(lambda: other.step().batches == 1, 20)
    assert total(stats) == 8


def test_programs_and_consumers_beside_each_other_count_everything_once(
    counting: Make, taker: Callable[..., BrokerConsumer]
) -> None:
    stop, faults = threading.Event(), list[BaseException]()

    def consume() -> None:
        one = taker()
        while not stop.is_set():
            one.step()

    def produce(place: int) -> None:
        try:
            stats = counting()
            for n in range(60):
                stats.add(f"a/{place}", {"n": n})
                stats.flush()
        except BaseException as error:  # noqa: BLE001 - shown by the test's own thread
            faults.append(error)

    consumers = [threading.Thread(target=consume) for _ in range(2)]
    producers = [threading.Thread(target=produce, args=(place,)) for place in range(3)]
    for thread in (*consumers, *producers):
        thread.start()
    for thread in producers:
        thread.join(150)
    stats = counting()
    try:
        eventually(lambda: total(stats) == 3 * sum(range(60)))
    finally:
        stop.set()
        for thread in consumers:
            thread.join(30)
    assert (faults, total(stats), stats.lag().waiting) == ([], 3 * sum(range(60)), 0)


def test_a_message_of_somebody_else_stops_no_other(
    rabbit: Rabbit, counting: Make, taker: Callable[..., BrokerConsumer], caplog: pytest.LogCaptureFixture
) -> None:
    stats = counting()
    count(stats, 1)
    with kombu.Connection(rabbit.url) as connection:
        channel = connection.channel()
        for headers in (
            None, {"sender": "x", "token": "canary"}, {"sender": 1, "number": "x", "at": "never"},
            {"sender": "x", "number": True, "at": 1}, {"sender": "x", "number": 1 << 60, "at": 1},
        ):  # fmt: skip
            channel.basic_publish(channel.prepare_message(b"alien", headers=headers), exchange="", routing_key=QUEUE)
    stats.add("a", {"n": 2})
    stats.flush()
    assert emptied(taker(), 7) == 7
    assert (total(stats), stats.lag().waiting) == (3, 0)
    assert caplog.text.count("cannot be read") == 5
    assert "token" in caplog.text
    assert "canary" not in caplog.text


def test_a_forked_child_sends_over_a_connection_of_its_own(
    counting: Make, taker: Callable[..., BrokerConsumer]
) -> None:
    """RS4."""
    stats = counting()
    count(stats, 1)
    stats.add("a", {"n": 2})
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            stats.add("a", {"n": 4})
            stats.flush()
            stats.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    broker = stats._writer.broker
    assert broker is not None
    connection = broker._connection
    stats.add("a", {"n": 8})
    stats.flush()
    assert broker._connection is connection
    emptied(taker(), stats.lag().waiting)
    assert total(stats) == 15


def test_a_broker_that_is_away_holds_nobody_up(make_stats: Make, caplog: pytest.LogCaptureFixture) -> None:
    stats = make_stats(stats="amqp", stats_broker="amqp://guest:guest@127.0.0.1:1//", timeout=20.0)
    stats.add("a", {"n": 1})
    assert stats.pending == 1
    with pytest.raises(BrokerUnavailable, match=r"amqp://\*\*\*@127.0.0.1:1// does not answer: .*refused; counts wait"):
        stats.flush()
    with pytest.raises(BrokerUnavailable):
        stats.lag()
    stats.close()
    assert "the last 1 counts of this process are lost" in caplog.text
    assert "guest" not in caplog.text


def test_what_is_wrong_is_told(rabbit: Rabbit, counting: Make, make_stats: Make) -> None:
    with pytest.raises(SettingsError, match="HEADRACE_STATS_BROKER"):
        make_stats(stats="amqp")
    with pytest.raises(SettingsError, match="must be a URL such as amqp://") as wrong:
        make_stats(stats="amqp", stats_broker="redis://:secret@host")
    assert "secret" not in str(wrong.value)
    with pytest.raises(SettingsError, match="must be a URL such as amqp://user:password@host/vhost") as wrong:
        make_stats(stats="amqp", stats_broker="amqp://guest:sec/ret@host")
    assert "sec" not in str(wrong.value)
    stats = counting(stats_broker=f"amqp://guest:secret@127.0.0.1:{rabbit.port}//")
    with pytest.raises(BrokerUnavailable, match="check user, password") as refused:
        stats.lag()
    assert "secret" not in str(refused.value)
    with pytest.raises(BrokerUnavailable, match="check user, password and virtual host"):
        counting(stats_broker=f"amqp://127.0.0.1:{rabbit.port}/nowhere").lag()
    assert counting().lag().waiting == 0
    with pytest.raises(
        BrokerUnavailable, match=r"another stats_stream_max or stats_overflow.*rabbitmqctl delete_queue"
    ):
        counting(stats_stream_max=5).lag()


def test_a_queue_that_was_deleted_is_made_again(
    rabbit: Rabbit, counting: Make, taker: Callable[..., BrokerConsumer]
) -> None:
    """A broker confirms, and drops, what is sent to a queue that it does not have."""
    stats = counting()
    count(stats, 2)
    emptied(taker(), 2)
    delete(rabbit)
    stats.add("a", {"n": 4})
    stats.flush()
    emptied(taker(), 1)
    assert total(stats) == 7


@pytest.fixture
def headrace(tmp_path: Path, url: str, rabbit: Rabbit) -> Program:
    program = Program(tmp_path, url)
    program.environment |= {
        "HEADRACE_STATS": "amqp", "HEADRACE_STATS_BROKER": rabbit.url, "HEADRACE_TIMEOUT": "20",
    }  # fmt: skip
    return program


def unwatched(broker: Rabbit) -> bool:
    """Whether no consumer is left: what one had fetched waits again."""
    with kombu.Connection(broker.url) as connection:
        return not connection.channel().queue_declare(QUEUE, passive=True).consumer_count


def test_consumers_that_are_killed_count_everything_once(headrace: Program, counting: Make, rabbit: Rabbit) -> None:
    stats = counting()
    done = threading.Event()

    def produce() -> None:
        for n in range(300):
            stats.add(f"a/{n % 7}", {"n": n})
            stats.flush()
        done.set()

    thread = threading.Thread(target=produce)
    thread.start()
    seen = -1
    for _ in range(4):
        process = headrace.start("stats", "consume", "--every", "0.05")
        try:
            # It is killed once it has counted something, at whatever it does then.
            eventually(lambda seen=seen: total(stats) > seen or (done.is_set() and not stats.lag().waiting), 60)
            seen = total(stats)
        finally:
            process.send_signal(signal.SIGKILL)
            process.communicate()
    thread.join(200)
    # Until the broker has noticed the last one's death nothing waits, and a burst would be over at once.
    eventually(lambda: unwatched(rabbit), what="the broker knows that the last consumer is gone")
    headrace("stats", "consume", "--burst")
    assert total(stats) == sum(range(300))


def test_workers_count_over_it(headrace: Program, url: str, counting: Make) -> None:
    with Headrace(url) as app:
        app.enqueue_many(app.by_name("tasks.add").job(1) for _ in range(3))
    headrace.burst()
    stats = counting()
    assert total(stats, "jobs/tasks.add", "succeeded") == 0
    said = headrace("stats", "consume", "--burst", "--json").lines
    assert said[0]["batches"] >= 1
    assert said[0]["lag"] > 0
    assert total(stats, "jobs/tasks.add", "succeeded") == 3
