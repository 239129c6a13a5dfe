"""``headrace doctor`` as an operator runs it: exit codes, findings with their commands, repair and its act."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from headrace import Headrace
from headrace.protocol.keys import Keys
from headrace.testing import assert_invariants
from tests.commands import Commands
from tests.deadline import eventually
from tests.servers import Server

pytestmark = [pytest.mark.system, pytest.mark.mangles]


class DiskFull:
    """Snapshots fail, as with a full disk."""

    def __init__(self, server: Server) -> None:
        self.client = server.client()
        self.directory = server.directory / "full"

    def begin(self) -> None:
        self.directory.mkdir()
        self.client.config_set("dir", str(self.directory))
        shutil.rmtree(self.directory)
        self.client.config_set("save", "3600 1")
        self._save("err")

    def end(self) -> None:
        self.directory.mkdir()
        self.client.config_set("dir", str(self.directory))
        self._save("ok")

    def _save(self, word: str) -> None:
        self.client.bgsave()
        eventually(lambda: self.client.info("persistence")["rdb_last_bgsave_status"] == word)


def test_a_sound_store_is_sound(headrace: Commands) -> None:
    headrace.enqueue("tasks.add", "1")
    assert "nothing is wrong" in headrace("doctor", "keyspace").out
    assert headrace("doctor", "keyspace", "--json").lines == []


def test_what_is_lost_is_found_mended_and_recorded(headrace: Commands, client: redis.Redis) -> None:
    one, two = headrace.enqueue("tasks.add", "1"), headrace.enqueue("tasks.add", "2")
    client.zrem(Keys()("ready:default"), one)
    client.delete(Keys().job(two))
    found = headrace("doctor", "keyspace", "--json", code=1).lines
    assert {row["id"]: row["evidence"] for row in found} == {
        "misplaced": [f"job {one}: not ready:default"],
        "no-record": [f"job {two}: ready:default"],
    }
    assert {row["command"] for row in found} == {"headrace doctor keyspace --repair"}
    assert "add --yes" in headrace("doctor", "keyspace", "--repair", code=2).err
    assert "nothing is wrong" in headrace("doctor", "keyspace", "--repair", "--yes").out
    (act,) = headrace("acts", "--json").lines
    assert (act["verb"], act["kind"], act["count"], act["reply"]) == ("repair", "keyspace", 2, "repaired 2 faults")
    assert headrace("doctor", "keyspace", "--json").lines == []
    assert_invariants(client)


def test_a_server_that_may_drop_jobs_is_refused_with_the_remedy(
    new_server: Callable[..., Server], tmp_path: Path
) -> None:
    server = new_server(config={"maxmemory-policy": "allkeys-lru", "save": ""})
    headrace = Commands(tmp_path, server.url)
    found = {row["id"]: row for row in headrace("doctor", "--json", code=1).lines}
    assert found["eviction-policy"]["command"] == "redis-cli CONFIG SET maxmemory-policy noeviction"
    assert found["persistence"]["evidence"] == ["appendonly no, save empty"]
    assert "may drop jobs" in headrace("doctor", "environment", code=1).out
    # It cannot look at what is stored there.
    assert "allkeys-lru" in headrace("doctor", "keyspace", code=2).err


def fill_memory(server: Server) -> None:
    server.owner.config_set("maxmemory", 1)


def fill_disk(server: Server) -> None:
    DiskFull(server).begin()


def ask_for_replicas(server: Server) -> None:
    server.owner.config_set("min-replicas-to-write", 1)


def make_a_replica(server: Server) -> None:
    server.owner.execute_command("REPLICAOF", "127.0.0.1", "1")


def cut_a_replica_off(server: Server) -> None:
    server.owner.config_set("replica-serve-stale-data", "no")
    make_a_replica(server)


def answers(server: Server, word: str) -> bool:
    """Whether it answers with an error of this word."""
    try:
        server.owner.get("x")
    except redis.RedisError as error:
        return word in str(error).upper()
    return False


def have_it_load(server: Server) -> None:
    server.owner.mset({f"other:{n}": n for n in range(6000)})
    server.owner.save()
    server.kill()
    server.load_slowly(5_000)
    eventually(lambda: answers(server, "LOADING"))


def hold_it_up(server: Server) -> None:
    # Its connection ends with the server.
    server.owner.connection_pool.get_connection().send_command("EVAL", "while true do end", 0)
    eventually(lambda: answers(server, "BUSY"))


def leave_no_room(server: Server) -> None:
    server.owner.config_set("maxclients", 1)


def ask_for_a_password(server: Server) -> None:
    server.owner.config_set("requirepass", "open-sesame")


# What the server then answers: the row that says why, the exit code, and what a person reads beside it.
ANSWERS: dict[Callable[[Server], None], tuple[str, int, str]] = {
    fill_memory: ("full", 1, ""),
    fill_disk: ("last-save", 2, "its memory or disk is full"),
    ask_for_replicas: ("refusing", 2, "too few replicas follow"),
    make_a_replica: ("replica", 2, "write the URL of its master"),
    cut_a_replica_off: ("replica", 2, "its master is away"),
    have_it_load: ("loading", 2, "it runs, and loads its data"),
    hold_it_up: ("", 2, "end that script by SCRIPT KILL"),
    leave_no_room: ("", 2, "raise its maxclients"),
    ask_for_a_password: ("", 2, "refused the credentials"),
}


@pytest.mark.parametrize("make", ANSWERS)
def test_the_doctor_names_what_a_server_answers_and_what_to_do(
    make: Callable[[Server], None], new_server: Callable[..., Server], tmp_path: Path
) -> None:
    server = new_server(config={"lua-time-limit": "100", "enable-protected-configs": "yes"})
    headrace = Commands(tmp_path, server.url)
    headrace.enqueue("tasks.add", "1")
    make(server)
    row, code, text = ANSWERS[make]
    # A server without room closes a connection at once: several tries may end before its word is read.
    told = headrace("doctor", "--json", code=code, HEADRACE_TIMEOUT="10" if make is leave_no_room else "2")
    assert text in told.err
    errors = {one["id"]: one["evidence"] for one in told.lines if one["severity"] == "error" or one["id"] == "full"}
    assert list(errors) == [row] * bool(row)
    if row == "full":
        assert errors[row][1:] == ["queue default: 1 job"]
    if row == "replica":
        assert errors[row] == ["its primary is 127.0.0.1:1, the link to it is down"]
    if row == "loading":
        assert "% are loaded" in errors[row][0]
    # In order it might not end.
    server.kill()


def test_a_server_that_is_away_cannot_be_looked_at(tmp_path: Path) -> None:
    assert "refused" in Commands(tmp_path, "redis://127.0.0.1:1/0")("doctor", code=2, HEADRACE_TIMEOUT="1").err


def test_a_server_of_several_is_named_that_is_away_or_unsound(
    new_server: Callable[..., Server], tmp_path: Path
) -> None:
    """All that was said of a silent one was "Timeout reading from socket"."""
    servers = [new_server() for _ in range(3)]
    headrace = Commands(tmp_path, " ".join(server.url for server in servers))
    headrace.enqueue("tasks.add", "1")
    servers[2].owner.config_set("maxmemory-policy", "allkeys-lru")
    found = {row["id"]: row["evidence"] for row in headrace("doctor", "environment", "--json", code=1).lines}
    assert found["eviction-policy"] == ["maxmemory-policy allkeys-lru", f"at {servers[2].url}"]
    assert found["persistence"] == ["appendonly no, save empty"]
    servers[2].owner.config_set("maxmemory-policy", "noeviction")
    servers[1].kill()
    for part in ("environment", "keyspace"):
        told = headrace("doctor", part, "--json", code=2, HEADRACE_TIMEOUT="1")
        assert f"shard 1 ({servers[1].url}) did not answer" in told.err
        assert "is the server running?" in told.err
        assert ("persistence" in told.out) == (part == "environment")


def test_a_server_that_hides_its_settings_is_unknown(new_server: Callable[..., Server], tmp_path: Path) -> None:
    server = new_server()
    server.owner.execute_command("ACL", "SETUSER", "shy", "on", ">pw", "~*", "&*", "+@all", "-config", "-slowlog")
    rows = Commands(tmp_path, server.url_of("shy:pw"))("doctor", "environment", "--json", code=None).lines
    unknown = {row["id"] for row in rows if row["severity"] == "unknown"}
    assert {"idle-timeout", "slow-scripts"} <= unknown
    # What the kernel of this machine tells of the server's process needs no permission of the server.
    assert not {"kernel", "swap"} & unknown or sys.platform != "linux"


def test_shards_that_are_uneven_on_servers_are_found(new_server: Callable[..., Server], tmp_path: Path) -> None:
    one, two = new_server(), new_server()
    rows = Commands(tmp_path, " ".join([one.url] * 3 + [two.url]))("doctor", "environment", "--json", code=1).lines
    assert {row["id"]: row["evidence"] for row in rows}["uneven-shards"] == ["3 shards on one server, 1 on another"]


@pytest.mark.parametrize("dies", ["doctor", "server"])
def test_a_repair_that_was_cut_off_is_done_by_the_next_one(
    dies: str, new_server: Callable[..., Server], tmp_path: Path
) -> None:
    server = new_server(append_only=True)
    headrace, keys = Commands(tmp_path, server.url), Keys()
    with Headrace(server.url) as app:
        drafts = [app.by_name("tasks.add").job(n) for n in range(3000)]
        app.enqueue_many(drafts)
        ids = [draft.handle.id for draft in drafts]
    client = server.client()
    client.zrem(keys("ready:default"), *ids)
    process = headrace.start(
        "doctor", "keyspace", "--repair", "--yes", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    eventually(lambda: client.zcard(keys("ready:default")), 60)
    if dies == "doctor":
        process.kill()
    else:
        server.restart()
    process.wait(60)
    assert "nothing is wrong" in headrace("doctor", "keyspace", "--repair", "--yes").out
    assert client.zcard(keys("ready:default")) == len(ids)
    assert_invariants(client)
