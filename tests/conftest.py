"""What every test may ask for: a server, a client, a wait with a deadline. And what none may leave behind."""

from __future__ import annotations

import compileall
import contextlib
import gc
import importlib
import os
import re
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis
from _pytest.assertion import rewrite
from hypothesis import HealthCheck, settings

from headrace.embedded import guard
from headrace.protocol.script import load
from headrace.protocol.script_header import parse_header
from tests import deadline, nursery, off_cluster, off_shards, servers
from tests.clusters import Cluster
from tests.servers import Server, connect

RUN_MARK = "HR_TEST_RUN"
"""Every process that the suite starts, however detached, inherits this from our environment."""

# What an example costs is decided by who else uses the machine.
settings.register_profile("suite", settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--servers",
        metavar="NAMES",
        default=servers.DEFAULT,
        help=f"run each test on all of these, separated by commas: {', '.join(servers.NAMES)}",
    )
    parser.addoption("--cluster", action="store_true", help="make each server of a test a cluster of one node")
    parser.addoption("--shards", metavar="N", help="give each store of a test this number of shards, on one server")


def pytest_configure(config: pytest.Config) -> None:
    os.environ[RUN_MARK] = uuid.uuid4().hex
    # The developer's own settings must neither help nor hinder a test.
    for name in [n for n in os.environ if n.startswith("HEADRACE_")]:
        del os.environ[name]
    if shards := config.getoption("--shards"):
        os.environ["HEADRACE_SHARDS"] = shards
    # Python takes a compiled file for fresh that was made within the second, of a source of the same size.
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    _start_lean(config.rootpath / "tests" / "lean")
    if not hasattr(config, "workerinput"):
        _compile(config)
    _end_in_order_on_term()
    # A shell without job control has what it starts in the background ignore this, and all that we start would do so.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("--cluster"):
        servers.cluster_all()
    try:
        binaries = [servers.find(name) for name in config.getoption("--servers").split(",")]
    except servers.AbsentError as error:
        raise pytest.UsageError(str(error)) from None
    config.stash[_BINARIES] = {binary.name: binary for binary in binaries}


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """Keep the tests as pytest compiles them, and nothing that tests write and import.

    Ten thousand tests stay until the end. To search them for garbage takes a fifth of what it takes to collect them,
    or more on a busy machine; and a search in a process that is forked later would copy all of their memory.
    """
    sys.dont_write_bytecode = False
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(7000, 10, 10)
        gc.enable()
        sys.dont_write_bytecode = True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    off = [(off_cluster.REASONS, "on a cluster")] if config.getoption("--cluster") else []
    off += [(off_shards.REASONS, "with several shards")] if config.getoption("--shards") else []
    for reasons, where in off:
        for item in items:
            for start, reason in reasons.items():
                if item.nodeid.startswith(start):
                    item.add_marker(pytest.mark.skip(reason=f"{where}: {reason}"))
    if hasattr(config, "workerinput"):
        _spread(items, config.workerinput["workercount"])


def _spread(items: list[pytest.Item], processes: int) -> None:
    """Have each process begin its share of slow tests within the first two thirds of what it is given.

    The scheduler gives each an equal part of the list, and the run ends with the last test. Slow tests that begin
    together would take the processor from each other.
    """
    slow = [item for item in items if item.get_closest_marker("slow")]
    rest = [item for item in items if not item.get_closest_marker("slow")]
    items.clear()
    for number in range(processes):
        part = rest[len(rest) * number // processes : len(rest) * (number + 1) // processes]
        mine = slow[number::processes]
        for place in reversed(range(len(mine))):
            part.insert(2 * len(part) * place // (3 * len(mine)), mine[place])
        items += part


def pytest_report_header(config: pytest.Config) -> str:
    return "servers: " + ", ".join(f"{b.name} ({b.version})" for b in config.stash[_BINARIES].values())


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "server_name" in metafunc.fixturenames:
        metafunc.parametrize("server_name", list(metafunc.config.stash[_BINARIES]))


@pytest.fixture(scope="session", autouse=True)
def nothing_left_running() -> Iterator[None]:
    """Fail the run if a process that it started still lives at its end; end that process, by its pid."""
    yield
    nursery.close()
    mark, left = os.environ[RUN_MARK], list[psutil.Process]()

    def all_gone() -> bool:
        left[:] = [p for p in psutil.process_iter() if _has_mark(p, mark)]
        return not left

    with contextlib.suppress(AssertionError):
        # A private server may take as long as its guard lets it.
        deadline.eventually(all_gone, timeout=guard.PATIENCE + 10, every=0.05)
    lines = [_describe(p) for p in left]
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    if lines:
        pytest.fail("processes outlived the tests that started them:\n  " + "\n  ".join(lines), pytrace=False)


@pytest.fixture(scope="session")
def running(nothing_left_running: None, pytestconfig: pytest.Config) -> Iterator[Callable[[str], Server]]:
    """The session's server of a name, started at its first use and again should a test have killed it."""
    started: dict[str, Server] = {}

    def get(name: str) -> Server:
        if name not in pytestconfig.stash[_BINARIES]:
            pytest.skip(f"{name} is absent on this machine")
        if name not in started:
            started[name] = Server(pytestconfig.stash[_BINARIES][name])
        started[name].start()
        return started[name]

    yield get
    for server in started.values():
        server.stop()


@pytest.fixture
def namespace() -> str:
    """The namespace whose invariants are asserted after the test; override it where a test uses another."""
    return "hr"


@pytest.fixture
def server(
    server_name: str, running: Callable[[str], Server], namespace: str, request: pytest.FixtureRequest
) -> Iterator[Server]:
    """The shared server, empty. Do not kill or configure it: ``new_server`` is for that."""
    server = running(server_name)
    server.owner.flushall()
    yield server
    if server.running and request.node.get_closest_marker("mangles") is None:
        _assert_invariants(server.owner, namespace)


@pytest.fixture
def url(server: Server) -> str:
    """The shared server's URL."""
    return server.url


@pytest.fixture
def client(server: Server) -> Iterator[redis.Redis]:
    """A plain client of the shared server: RESP2, bytes."""
    with connect(server.url) as client:
        yield client


@pytest.fixture
def loaded(client: redis.Redis) -> None:
    """Every script is on the shared server, for tests that count round trips: a script's first use takes one more."""
    folder = resources.files("headrace").joinpath("scripts")
    headers = {entry.name.removesuffix(".lua"): parse_header(entry.read_text()) for entry in folder.iterdir()}
    included = {name for header in headers.values() for name in header.includes}
    for name in headers.keys() - included:
        client.script_load(load(name).text)


@pytest.fixture
def new_server(nothing_left_running: None, pytestconfig: pytest.Config) -> Iterator[Callable[..., Server]]:
    """Make a server of the test's own, to kill, restart or configure: ``new_server(append_only=True)``.

    Takes the options of ``Server``, plus ``name`` for another binary; the test is skipped where it is absent.
    """
    made: list[Server] = []

    def make(name: str = servers.DEFAULT, **options: Any) -> Server:
        try:
            binary = servers.find(name)
        except servers.AbsentError as error:
            pytest.skip(str(error))
        made.append(Server(binary, **options))
        return made[-1]

    yield make
    for server in made:
        server.stop()


@pytest.fixture
def new_cluster(nothing_left_running: None) -> Iterator[Callable[..., Cluster]]:
    """Form a cluster of the test's own: ``new_cluster(3, 1, proxied=True)``. Takes the arguments of ``Cluster``."""
    with contextlib.ExitStack() as made:
        yield lambda *arguments, **options: made.enter_context(Cluster(*arguments, **options))


@pytest.fixture
def eventually() -> Callable[..., Any]:
    """``eventually(condition, timeout=60)``: wait until it is true and return its value. Tests never sleep."""
    return deadline.eventually


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return Path(__file__).resolve().parent.parent


def _compile(config: pytest.Config) -> None:
    """Compile once what each of the thousand programs of the suite imports, and what each of its processes collects."""
    state = config.stash.get(rewrite.assertstate_key, None)
    found = dict[Path, str]()
    for directory in (config.rootpath / "src", config.rootpath / "tests"):
        compileall.compile_dir(directory, quiet=2, rx=re.compile(r"/test_"))
        for source in sorted(directory.rglob("*.py")):
            found[source] = ".".join(source.relative_to(config.rootpath).with_suffix("").parts).removeprefix("src.")
    # Plugins of pytest, which it has imported by now, and would compile in each process where Python keeps nothing.
    for name, module in sys.modules.items():
        if isinstance(getattr(module, "__loader__", None), rewrite.AssertionRewritingHook):
            found.setdefault(Path(str(module.__file__)), name)
    for source, name in found.items():
        # As pytest keeps what it has put the values of an assertion into. Its processes start together, so that each
        # would do this for every file.
        kept = rewrite.get_cache_dir(source) / (source.stem + rewrite.PYC_TAIL)
        if state is None or state.hook is None or not state.hook._should_rewrite(name, str(source), state):
            continue
        if not kept.exists() or kept.stat().st_mtime < source.stat().st_mtime:
            facts, code = rewrite._rewrite_test(source, config)
            if rewrite.try_makedirs(kept.parent):
                rewrite._write_pyc(state, code, facts, kept)


def _start_lean(directory: Path) -> None:
    """Have the programs of the suite do what ``sitecustomize`` in this directory says; not this process."""
    paths = [str(directory), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    for name in [n for n, module in sys.modules.items() if module is None and n.startswith("opentelemetry.")]:
        del sys.modules[name]


def _end_in_order_on_term() -> None:
    """Let TERM end the run as Ctrl-C does: one from ``timeout`` would otherwise leave the servers behind."""
    ours = os.getpid()

    def end(number: int, _frame: object) -> None:
        if os.getpid() == ours:
            raise KeyboardInterrupt
        # A fork of ours that has no handler of its own yet must die as TERM says.
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, end)


def _assert_invariants(client: redis.Redis, namespace: str) -> None:
    try:
        testing = importlib.import_module("headrace.testing")
    except ModuleNotFoundError as error:
        if error.name == "headrace.testing":
            return  # a checkout without it has nothing to assert
        raise
    testing.assert_invariants(client, namespace)


def _has_mark(process: psutil.Process, mark: str) -> bool:
    try:
        return (
            process.pid != os.getpid()
            and process.status() != psutil.STATUS_ZOMBIE
            and process.environ().get(RUN_MARK) == mark
        )
    except (psutil.Error, OSError):
        return False


def _describe(process: psutil.Process) -> str:
    try:
        age = time.time() - process.create_time()
        return f"{process.pid}, {process.status()}, {age:.0f} s old: {' '.join(process.cmdline())[:1000]}"
    except psutil.Error:
        return f"{process.pid}: gone by now"


_BINARIES = pytest.StashKey[dict[str, servers.Binary]]()


@pytest.fixture(scope="module")
def their_server() -> Iterator[Server]:
    """A server with the queues of another system."""
    server = Server()
    yield server
    server.stop()


@pytest.fixture
def theirs(their_server: Server) -> Iterator[redis.Redis]:
    client = redis.Redis.from_url(their_server.url)
    yield client
    client.flushall()
    client.close()
