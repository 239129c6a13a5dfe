"""What holds for every script: headers say what bodies do, errors name the file's own line, access ends at the header."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest
import redis

from headrace.protocol import script_header
from headrace.protocol.access import commands_of
from headrace.protocol.keys import Keys, documented
from headrace.protocol.script import Call, Script, load
from headrace.protocol.script_header import Header, included, parse_header
from tests.scripts.guard import USER, Guard, rules
from tests.scripts.stage import Stage

SOURCES = {
    Path(entry.name).stem: entry.read_text()
    for entry in files("headrace").joinpath("scripts").iterdir()
    if entry.name.endswith(".lua")
}
INCLUDED = {name for text in SOURCES.values() for name in parse_header(text).includes}
ALONE = sorted(SOURCES.keys() - INCLUDED)
DUMMIES = {"text": "x", "int": 0, "packed": list[str]()}


def body(text: str) -> str:
    """A script without comments and header."""
    return "\n".join(line.split("--")[0] for line in text.splitlines())


def dummy(script: Script) -> Call[object]:
    """A call that binds, whatever its arguments mean."""
    values = {arg.name: DUMMIES[arg.kind] for arg in script.header.args}
    return script.bind(Keys(), lambda reply: reply, **values)


def altered(name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> Script:
    """A script as if its file held another text."""
    load(name)  # into the cache, before its file seems to hold another text
    original = script_header._source
    monkeypatch.setattr(script_header, "_source", lambda part: text if part == name else original(part))
    return load.__wrapped__(name)


def names_of(header: Header) -> list[str]:
    """What it declares, by name."""
    return [one.name for one in (*header.keys, *header.derives, *header.channels, *header.args)]


def unused(name: str) -> list[str]:
    """What a header declares and nothing uses."""
    header = parse_header(SOURCES[name])
    # What an include needs may be declared by the includer alone, so that its own use counts too.
    text = body("\n".join(SOURCES[part] for part in (*included(header.includes), name)))
    names = names_of(header)
    # A name that only fills a key's hole is used by the header itself.
    holes = {hole for key in header.keys for hole in re.findall(r"<(\w+)>", key.pattern)}
    holes.add(header.removes)
    return [one for one in names if one not in holes and re.search(rf"\b{one}\b", text) is None]


def test_each_script_has_a_test_of_its_own() -> None:
    tested = {path.stem.removeprefix("test_") for path in Path(__file__).parent.glob("test_*.py")}
    assert SOURCES.keys() - tested - {"again"} == set()


def test_a_script_says_which_shard_is_called_and_an_include_does_not() -> None:
    assert {name for name, text in SOURCES.items() if not parse_header(text).route} == INCLUDED


def test_bodies_use_names_only() -> None:
    assert [name for name, text in SOURCES.items() if re.search(r"\b(KEYS|ARGV)\b", text)] == []


def test_every_declared_name_is_used() -> None:
    assert {name: found for name in SOURCES if (found := unused(name))} == {}


def test_no_name_hides_another() -> None:
    for name in ALONE:
        names = names_of(load(name).header)
        assert len(names) == len(set(names)), name
        assert not {"prefix", "now", "redis"} & set(names), name


def test_every_pattern_is_documented_with_its_type() -> None:
    documents = documented()
    for name, text in SOURCES.items():
        header = parse_header(text)
        for key in (*header.keys, *header.derives):
            if key.pattern not in ("<index>", "<line>"):  # page and told read whichever they are told to
                assert documents.get(key.pattern) == key.type, (name, key)


def test_holes_of_declared_keys_are_arguments() -> None:
    for name in ALONE:
        header = load(name).header
        holes = {hole for key in header.keys for hole in re.findall(r"<(\w+)>", key.pattern)}
        assert holes <= {arg.name for arg in header.args}, name


def test_no_global_is_made_or_read() -> None:
    """A bare assignment or function would be a global, which the servers refuse only when the line runs."""
    lines = [(name, line) for name, text in SOURCES.items() for line in body(text).splitlines()]
    assert [found for found in lines if re.match(r"\s*function\s+\w", found[1])] == []


def test_an_error_names_the_line_of_the_file(client: redis.Redis) -> None:
    for name in ALONE:
        lines = SOURCES[name].splitlines()
        first = next(n for n, line in enumerate(lines) if not line.startswith("--"))
        lines.insert(first, "error({err = 'ERR ' .. nil})")
        with pytest.MonkeyPatch.context() as patch:
            script = altered(name, "\n".join(lines), patch)
        with pytest.raises(redis.ResponseError, match="concatenate a nil") as caught:
            client.execute_command("EVAL", script.text, *dummy(script).command()[2:])
        script.locate(caught.value)
        assert f"{name}.lua:{first + 1}: attempt" in str(caught.value)


def test_each_line_of_the_text_is_known_by_its_file() -> None:
    sources = {name: text.splitlines() for name, text in SOURCES.items()}
    for name in ALONE:
        script = load(name)
        lines = script.text.split("\n")
        assert len(lines) == len(script.places), name
        for text, (file, line) in list(zip(lines, script.places, strict=True))[1:]:
            made = re.match(r"(end )?local reply = ", text) is not None or re.match(r"batch\.\w+ = ", text) is not None
            assert line == 1 or not text or made or text == sources[file][line - 1].strip(), (name, file, line)


def test_an_include_keeps_what_it_collects_in_the_batch_only() -> None:
    """What stands at the margin of an include: functions, constants, and what is computed from keys once."""
    may = re.compile(r"local (function \w+\(|[A-Z_]+(, [A-Z_]+)* = |finals = )")
    lines = [(name, line) for name in sorted(INCLUDED) for line in body(SOURCES[name]).splitlines()]
    assert [found for found in lines if found[1].startswith("local ") and not may.match(found[1])] == []


@pytest.fixture
def guard(client: redis.Redis) -> Iterator[Guard]:
    guard = Guard(client, Keys().prefix)
    yield guard
    guard.close()


@pytest.mark.parametrize(
    "reach",
    [
        "redis.call('GET', prefix .. 'schema')",
        "redis.call('DEL', prefix .. 'flow:')",
        "redis.call('SADD', 'paused', 'x')",
        "redis.call('PUBLISH', prefix .. 'done:1', 'x')",
        "redis.call('FLUSHALL')",
    ],
)
def test_the_guard_refuses_what_is_not_declared(
    reach: str, guard: Guard, monkeypatch: pytest.MonkeyPatch, client: redis.Redis
) -> None:
    text = SOURCES["pause"].replace("return new", "") + reach
    script = altered("pause", text, monkeypatch)
    call = dummy(script)
    assert guard.run(dummy(load("pause"))) == 1
    if "FLUSHALL" in reach:
        monkeypatch.setattr("tests.scripts.guard.commands_of", lambda _: {"sadd"})
    with pytest.raises(redis.ResponseError, match=r"(?i)perm|access|can't|NOPERM"):
        guard.run(call)
    assert "+sadd" in rules(call, Keys().prefix)
    assert client.exists(Keys()("paused"))


def test_the_guard_knows_each_command() -> None:
    assert commands_of(load("paused")) == {"smembers"}
    assert {"zadd", "time", "exists", "publish"} <= commands_of(load("settle"))
    for name in ALONE:
        dynamic = re.findall(r"redis\.p?call\((?!').*", body(SOURCES[name]))
        assert dynamic == [], "a command's name is written out, so that its access can be read off"


def test_the_stage_is_guarded(stage: Stage) -> None:
    """So each test of each script is a test of its access too."""
    stage.put()
    (guarded,) = [user for user in stage.client.acl_list() if USER in user]
    assert "+evalsha" in guarded
