"""Headers: what they may say, how includes merge, how names become EVALSHA's positions."""

from __future__ import annotations

import hashlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.protocol import script_header
from headrace.protocol.keys import Keys
from headrace.protocol.script import Script, blob, load
from headrace.protocol.script_header import Argument, HeaderError, Key, parse_header

TITLE = "-- Try: a job is tried.\n"


def made(monkeypatch: pytest.MonkeyPatch, **sources: str) -> Script:
    """The script ``main`` of these files."""
    monkeypatch.setattr(script_header, "_source", lambda name: sources[name])
    return load.__wrapped__("main")


def test_a_header_is_read_in_order() -> None:
    header = parse_header(
        TITLE + "-- include other\n"
        "-- keys    one=ready:<queue> totals job\n-- keys    about=owner any=<queue> done\n"
        "-- arg     queue text  its name\n-- arg rows packed\n-- arg n int\n"
        "-- return  words: arg and key are words of people here\n"
        "return 1\n-- arg late text\n"
    )
    assert header.title == "Try: a job is tried."
    assert header.keys == (Key("one", "zset", "ready:<queue>"), Key("any", "any", "<queue>"))
    totals, job = Key("totals", "hash", "totals"), Key("job", "hash", "job:<id>")
    assert header.derives == (totals, job, Key("about", "hash", "owner:<owner>"))
    assert header.channels == (Key("done", "channel", "done:<id>"),)
    assert header.args == (Argument("queue", "text"), Argument("rows", "packed"), Argument("n", "int"))
    assert header.includes == ("other",)


@pytest.mark.parametrize("text", ["", "return 1", "--Try", "\n-- Try: late"])
def test_a_script_opens_with_its_title(text: str) -> None:
    with pytest.raises(HeaderError, match="title"):
        parse_header(text)


@pytest.mark.parametrize(
    "line",
    [
        "-- arg id",
        "-- arg id float",
        "-- keys",
        "-- include",
    ],
)
def test_a_line_that_cannot_be_read_is_shown(line: str) -> None:
    with pytest.raises(HeaderError, match=line):
        parse_header(TITLE + line)


def test_a_key_that_the_table_has_not_is_refused() -> None:
    for one in ("jobs", "job:<key>", "<key>"):
        with pytest.raises(HeaderError, match=f"no key '{one}' is documented"):
            parse_header(TITLE + f"-- keys job {one}")


def test_names_take_positions_and_lines_without_code_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    script = made(
        monkeypatch,
        main=TITLE + "-- keys ready:<queue>\n-- arg queue text\n-- arg n int\n-- arg rows packed\nreturn {n, ready}",
    )
    first, *rest = script.text.split("\n")
    assert script.places == (("main", 1), ("main", 6))
    assert "local ready = KEYS[1]" in first
    assert (
        "local queue = ARGV[2] local n = tonumber(ARGV[3]) local rows = ARGV[4] == '' and {} or cmsgpack.unpack(ARGV[4])"
        in first
    )
    assert rest == ["return {n, ready}"]
    assert script.sha == hashlib.sha1(script.text.encode()).hexdigest()


def test_a_call_sends_the_keys_that_have_an_argument_and_one_at_least(monkeypatch: pytest.MonkeyPatch) -> None:
    constant = "-- keys job all=queues totals\n"
    script = made(monkeypatch, main=TITLE + constant + "-- keys ready:<queue>\n-- arg queue text\nreturn all")
    assert script.bind(Keys(), int, queue="mail").keys == ("{hr:0}:ready:mail",)
    assert "local all = prefix .. 'queues'" in script.text
    script = made(monkeypatch, main=TITLE + constant + "return {all, totals, job}")
    assert script.bind(Keys(), int).keys == ("{hr:0}:queues",)
    assert "local all = KEYS[1] local job = prefix .. 'job:' local totals = prefix .. 'totals'" in script.text


def test_a_clock_comes_before_the_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    script = made(monkeypatch, main=TITLE + "-- arg id text\nreturn now")
    call = script.bind(Keys(), int, id="x")
    assert call.args == ("{hr:0}:", 0, "x")
    assert call.at(5).args == ("{hr:0}:", 5, "x")
    assert call.at(5).at(-7).args == ("{hr:0}:", 5, "x")
    assert "local id = ARGV[3]" in script.text


def test_includes_come_first_each_once_with_their_declarations(monkeypatch: pytest.MonkeyPatch) -> None:
    part = "-- Part: included.\n-- keys totals\n-- a remark\nlocal function f()\n  return totals, now\nend\n"
    more = "-- More: included.\n-- include part\n-- keys job\nlocal function g() return f(job) end\n"
    main = TITLE + "-- include more\n-- include part\n-- keys totals\n-- arg id text\nreturn g()\n"
    script = made(monkeypatch, main=main, part=part, more=more)
    assert script.header.derives == (Key("totals", "hash", "totals"), Key("job", "hash", "job:<id>"))
    assert script.header.clock
    assert script.text.count("local function f()") == 1
    assert script.text.index("local function f()") < script.text.index("local function g()")
    assert "remark" not in script.text
    lines = script.text.split("\n")
    for file, line, text in (
        ("part", 5, "return totals, now"),
        ("more", 4, "local function g() return f(job) end"),
        ("main", 6, "return g()"),
    ):
        assert lines[script.places.index((file, line))] == text


BATCH = "-- Part: included.\n-- batch rows {}\n-- step store_rows\nlocal function store_rows() batch.rows = {} end\n"


def test_a_batch_is_made_before_the_body_and_stored_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    other = (
        "-- Other: included.\n-- include part\n-- batch n 0\n-- step count\nlocal function count() batch.n = 1 end\n"
    )
    main = TITLE + "-- include other\nlocal one = 1\nreturn one\n"
    lines = made(monkeypatch, main=main, part=BATCH, other=other).text.split("\n")
    assert "local batch = {rows = {}, n = 0}" in lines[0]
    begun = lines.index("local function body()")
    assert lines[begun + 1 : begun + 3] == ["local one = 1", "return one"]
    assert lines[-1].startswith("end local reply = body() count() store_rows() ")
    assert max(lines.index(line) for line in lines if line.startswith("local function")) == begun


def test_a_script_of_one_line_has_its_steps_behind_it_without_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    main = TITLE + "-- include part\nreturn 1\n"
    lines = made(monkeypatch, main=main, part=BATCH).text.split("\n")
    assert "local function body()" not in lines
    assert lines[-1].startswith("local reply = 1 store_rows() ")


@pytest.mark.parametrize(
    ("main", "why"),
    [
        (TITLE + "-- removes first paused\nreturn 1", "not a declared key"),
        (TITLE + "-- keys token\n-- removes first token\nreturn 1", "nothing can be removed"),
    ],
)
def test_a_header_that_promises_what_cannot_be_is_refused(monkeypatch: pytest.MonkeyPatch, main: str, why: str) -> None:
    with pytest.raises(HeaderError, match=why):
        made(monkeypatch, main=main, part=BATCH)


@pytest.mark.parametrize(("key", "command"), [("scheduled", "ZREM"), ("paused", "SREM"), ("totals", "HDEL")])
def test_a_removal_of_nothing_comes_first(monkeypatch: pytest.MonkeyPatch, key: str, command: str) -> None:
    main = TITLE + f"-- keys one={key}\n-- removes first one\nredis.call('SET', one, 1)"
    assert f"redis.call('{command}', one, '')" in made(monkeypatch, main=main).text.split("\n")[0]


def test_a_command_for_many_values_is_made_once_where_code_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    part = (
        "-- Part: included.\nlocal function put(rows) zadd_gt_all('x', rows) unlink_all(rows) zadd_all('x', rows) end\n"
    )
    main = TITLE + "-- include part\nput({})\nzadd_all('y', {})\n"
    first = made(monkeypatch, main=main, part=part).text.split("\n")[0]
    assert first.count("local function zadd_all(key, list)") == 1
    assert "redis.call('ZADD', key, 'GT', unpack(" in first
    assert "local function unlink_all(list)" in first
    assert "local function hset_all" not in first


def test_keys_and_parts_of_the_batch_that_no_code_of_a_script_names_are_none_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    part = "-- Part: included.\n-- keys totals job done\n-- batch rows {}\n-- batch n 0\n"
    part += (
        "local function other() return {job, done, batch.rows} end\nlocal function f() return {totals, batch.n} end\n"
    )
    script = made(monkeypatch, main=TITLE + "-- include part\nreturn f()\n", part=part)
    assert script.header.derives == (Key("totals", "hash", "totals"),)
    assert script.header.channels == ()
    assert "local batch = {n = 0}" in script.text


def test_what_fills_a_key_or_names_the_shard_is_an_argument_and_so_is_one_of_an_include(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    part = "-- Part: included.\n-- keys seen=sender:<sender>\n-- arg rows packed\nlocal function f() return seen end\n"
    main = (
        TITLE + "-- include part\n-- keys ready:<queue>\n-- arg n int\n-- arg queue text\n-- route of id\nreturn f()\n"
    )
    header = made(monkeypatch, main=main, part=part).header
    kinds = {arg.name: arg.kind for arg in header.args}
    assert kinds == {"n": "int", "queue": "text", "rows": "packed", "id": "text", "sender": "text"}


def test_an_error_is_located(monkeypatch: pytest.MonkeyPatch) -> None:
    script = made(monkeypatch, main=TITLE + "-- include part\nreturn x.y", part=BATCH)
    error = ValueError("@user_script: 2: user_script:3: oops script: on @user_script:1.", 7)
    script.locate(error)
    assert error.args == ("part.lua:4: main.lua:3: oops script: on main.lua:1.", 7)


def test_arguments_are_given_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    script = made(monkeypatch, main=TITLE + "-- keys ready:<queue>\n-- arg queue text\n-- arg rows packed\nreturn 1")
    call = script.bind(Keys("app", 3), str, rows=[1, "a", [b"x"]], queue="low")
    assert call.keys == ("{app:3}:ready:low",)
    assert call.args[:2] == ("{app:3}:", "low")
    assert msgspec.msgpack.decode(call.args[2]) == [1, "a", [b"x"]]
    assert call.command()[:3] == ("EVALSHA", script.sha, 1)
    for wrong in ({"queue": "low"}, {"queue": "low", "rows": [], "more": 1}):
        with pytest.raises(TypeError, match="takes"):
            script.bind(Keys(), str, **wrong)
    with pytest.raises((TypeError, KeyError)):
        script.bind(Keys(), str, queue="low", row=[])


@given(st.binary(max_size=70_000))
def test_a_blob_is_a_messagepack_string_of_any_bytes(data: bytes) -> None:
    _check_blob(data)


@pytest.mark.parametrize("size", [0, 31, 32, 255, 256, 65_535, 65_536, 1_000_000])
def test_blobs_at_the_edges_of_their_headers(size: int) -> None:
    _check_blob(b"\xff" * size)


def _check_blob(data: bytes) -> None:
    packed = bytes(blob(data))
    head = {0xD9: 2, 0xDA: 3, 0xDB: 5}.get(packed[0], 1)
    assert packed[head:] == data
    size = packed[0] & 0x1F if head == 1 else int.from_bytes(packed[1:head], "big")
    assert size == len(data)
    assert head != 1 or packed[0] >> 5 == 0b101


def test_each_script_is_loaded_once() -> None:
    assert load("enqueue") is load("enqueue")
    with pytest.raises(FileNotFoundError):
        load("absent")


LAZY = "-- Part: included.\n-- batch rows {}\n-- lazy parts f\nlocal function f() return 7 end\n"


def test_lazy_includes_are_in_one_function_that_gives_what_they_say(monkeypatch: pytest.MonkeyPatch) -> None:
    other = "-- Other: included.\n-- include part\n-- lazy parts g\n-- step store\nlocal function g() return f() end\nlocal function store() batch.rows = {} end\n"
    last = "-- Last: included.\n-- include other\nlocal function h() return parts().g() end\n"
    main = TITLE + "-- include last\nreturn h()\n"
    script = made(monkeypatch, main=main, last=last, other=other, part=LAZY)
    lines = script.text.split("\n")
    opening = lines.index("local function parts() if batch.parts then return batch.parts end batch.rows = {}")
    assert lines[0].endswith("local batch = {}")
    closing = lines.index("batch.parts = {g = g, store = store} return batch.parts end")
    assert opening < lines.index("local function g() return f() end") < closing < len(lines) - 1
    assert lines[-1].startswith("local reply = h() if batch.parts then batch.parts.store() end")
    error = Exception(f"user_script:{lines.index('local function g() return f() end') + 1}: x")
    script.locate(error)
    assert "other.lua:5" in str(error)


def test_a_lazy_function_makes_what_this_script_needs_only(monkeypatch: pytest.MonkeyPatch) -> None:
    part = "-- Part: included.\n-- batch rows {}\n-- lazy parts f g\nlocal function f() return 7 end\nlocal function g() return f() end\n"
    text = made(monkeypatch, main=TITLE + "-- include part\nreturn parts().f()\n", part=part).text
    assert "batch.parts = {f = f} return" in text
    assert "local function g" not in text
    text = made(monkeypatch, main=TITLE + "-- include part\nreturn parts().g()\n", part=part).text
    assert "batch.parts = {g = g} return" in text
    assert "local function f" in text


def test_keys_that_only_lazy_includes_name_are_bound_inside_their_function(monkeypatch: pytest.MonkeyPatch) -> None:
    lazy = "-- Part: included.\n-- batch rows {}\n-- step f\n-- keys totals job\n-- lazy parts f\nlocal function f() zadd_all(totals, {job}) end\n"
    main = TITLE + "-- include part\n-- keys ready:<queue>\n-- keys job\n-- arg queue text\nreturn {job, ready}\n"
    lines = made(monkeypatch, main=main, part=lazy).text.split("\n")
    opening = next(line for line in lines if line.startswith("local function parts()"))
    for code in ("local totals = prefix .. 'totals'", "local function zadd_all("):
        assert code not in lines[0]
        assert code in opening
    for code in ("local ready = KEYS[", "local job = prefix"):
        assert code in lines[0]
        assert code not in opening


def test_functions_that_nothing_needs_are_left_out_and_lines_keep_their_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tools = "-- Tools: included.\nlocal function inner() return 1 end\nlocal function used()\n  return inner()\nend\n"
    tools += "local function other()\n  return used()\nend\nlocal function last() return 2 end"
    script = made(monkeypatch, main=TITLE + "-- include tools\n-- other, in words only\nreturn used()", tools=tools)
    assert "local function inner" in script.text
    assert "local function other" not in script.text
    assert "local function last" not in script.text
    assert script.places[script.text.split("\n").index("return used()")] == ("main", 4)


def test_functions_that_only_one_lazy_function_needs_are_made_inside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    tools = (
        "-- Tools: included.\nlocal function inner()\n  return 1\nend\nlocal function outer() return inner() end\n"
        "local function shared() return 2 end\n"
    )
    lazy = "-- Part: included.\n-- include tools\n-- batch rows {}\n-- lazy parts f\nlocal function f() return outer() + shared() end\n"
    main = TITLE + "-- include tools\n-- include part\nreturn shared() + parts().f()\n"
    script = made(monkeypatch, main=main, tools=tools, part=lazy)
    lines = script.text.split("\n")
    opening = next(n for n, line in enumerate(lines) if line.startswith("local function parts()"))
    assert lines.index("local function shared() return 2 end") < opening
    assert opening < lines.index("local function inner()") < lines.index("local function outer() return inner() end")
    assert lines.index("local function f() return outer() + shared() end") < lines.index(
        "batch.parts = {f = f} return batch.parts end"
    )
    assert script.places[lines.index("local function inner()")] == ("tools", 2)


def test_a_lazy_function_comes_after_all_that_its_files_include(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where another file, which includes one of its files, comes first."""
    other = "-- Other: included.\n-- include tools\n-- include part\n-- lazy parts g\nlocal function g() return f() + used() end\n"
    tools = "-- Tools: included.\nlocal function used() return 1 end\n"
    main = TITLE + "-- include part\n-- include tools\n-- include other\nreturn used() + parts().g()\n"
    lines = made(monkeypatch, main=main, part=LAZY, other=other, tools=tools).text.split("\n")
    assert lines.index("local function used() return 1 end") < lines.index("local function g() return f() + used() end")
    opening = next(n for n, line in enumerate(lines) if line.startswith("local function parts()"))
    assert lines.index("local function used() return 1 end") < opening


def test_a_file_that_a_lazy_function_needs_and_that_needs_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    other = "-- Other: included.\n-- include tools\n-- lazy parts g\nlocal function g() return used() end\n"
    tools = "-- Tools: included.\n-- include part\nlocal function used() return parts().f() end\n"
    with pytest.raises(HeaderError, match="parts -> tools -> parts"):
        made(monkeypatch, main=TITLE + "-- include other\nreturn 1\n", other=other, tools=tools, part=LAZY)
