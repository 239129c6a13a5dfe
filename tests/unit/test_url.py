"""What a URL says, and what is wrong with one: found without connecting, told without its password."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from redis.connection import parse_url

from headrace.errors import UrlError
from headrace.store.url import TLS_FILES, parse, passwords, shown
from tests.tls import AUTHORITY, certificate


def test_each_form_is_understood(tmp_path: Path) -> None:
    assert parse("valkey://h").options == parse("redis://h").options
    assert not parse("redis://h").tls
    secure = parse(f"valkeys://u:p%2Fw@h:6380/2?ssl_ca_certs={AUTHORITY}&ssl_check_hostname=false")
    assert secure.tls
    assert secure.options["password"] == "p/w"
    assert (secure.options["db"], secure.options["ssl_check_hostname"]) == (2, False)
    assert secure.options["ssl_ca_certs"] == str(AUTHORITY)
    assert parse(f"rediss://h?ssl_certfile={certificate('locked')}&ssl_password=s3cret").tls
    # Nor may it ask for that of a key which takes this one's place.
    for scheme, rest in (("rediss", "h"), ("sentinels", "h/jobs")):
        assert parse(f"{scheme}://{rest}?ssl_certfile={certificate('client')}").options["ssl_password"] == ""
    # Not left to the driver, whose older versions check nothing of it.
    assert parse("rediss://h").options["ssl_check_hostname"] is True
    assert "ssl_check_hostname" not in parse("rediss://h?ssl_cert_reqs=none").options
    assert parse("unix:///run/s.sock?db=3").options["db"] == 3
    assert parse("unix:///run/%C3%A9%FF/s.sock").options["path"] == "/run/é\udcff/s.sock", "bytes that are no UTF-8"


@pytest.mark.parametrize(
    "url",
    [
        "redis://h",
        "redis://u%40x:p%2Fw@H.Example:6380/3?socket_timeout=2.5",
        "redis://:p@[::1]/?db=4&db=5&username=a",
        "redis://user@h?socket_keepalive=no&socket_connect_timeout=1",
        "rediss://h/0?ssl_check_hostname=F&ssl_cert_reqs=required",
        "unix://u:p@/run/%C3%A9?db=2",
    ],
)
def test_options_are_those_of_the_drivers_own_parser(url: str) -> None:
    """A URL is read without the driver, whose import costs each fork of a small image as much as all else."""
    theirs: dict[str, object] = dict(parse_url(url))
    theirs.pop("connection_class", None)
    assert parse(url).options == theirs


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("redis://h?ssl_ca_certs=/x", "has ssl_ca_certs, which is for TLS: write rediss:// instead of redis://"),
        ("unix:///s?ssl_cert_reqs=none", "which is for TLS"),
        ("rediss://h?ssl_cert_reqs=never", "ssl_cert_reqs=never: use one of required, optional, none"),
        ("rediss://h?ssl_verify=no", "has the option 'ssl_verify', which is unknown: use some of db, .*ssl_ca_certs"),
        ("redis://:a[b@h", r"% as %25, .*\[ as %5B"),
        ("redis://h?retries=3", "has the option 'retries', which is unknown"),
        ("redis://h?socket_timeout=soon", r"Invalid value for .socket_timeout"),
        *((f"rediss://h?{name}=/no/such.pem", f"has {name}=/no/such.pem, which is not there") for name in TLS_FILES),
        (f"rediss://h?ssl_keyfile={certificate('client')}", "has ssl_keyfile and no ssl_certfile"),
        (f"rediss://h?ssl_ca_certs={__file__}", f"has ssl_ca_certs={__file__}, which holds no certificates"),
        (f"rediss://h?ssl_certfile={AUTHORITY}", "cannot be used with its key .*ssl_keyfile=/path, both as PEM"),
        (
            f"rediss://h?ssl_certfile={certificate('client')}&ssl_keyfile={certificate('other')}",
            f"has ssl_certfile={certificate('client')}, which cannot be used with its key .*mismatch",
        ),
        # OpenSSL must not ask the terminal for it.
        (f"rediss://h?ssl_certfile={certificate('locked')}", "the password of an encrypted key with &ssl_password="),
    ],
)
def test_options_that_cannot_be_used_are_named(url: str, text: str) -> None:
    with pytest.raises(UrlError, match=text):
        parse(url)


@pytest.mark.parametrize(
    ("url", "meant"),
    [
        ("localhost:6390", "redis://localhost:6390"),
        ("localhost", "redis://localhost"),
        ("//jobs.internal:6379/2", "redis://jobs.internal:6379/2"),
        ("127.0.0.1:6390/0", "redis://127.0.0.1:6390/0"),
        ("[::1]:6379", "redis://[::1]:6379"),
        ("/run/valkey/valkey.sock", "unix:///run/valkey/valkey.sock"),
    ],
)
def test_a_url_without_a_scheme_is_understood_and_refused(url: str, meant: str) -> None:
    with pytest.raises(UrlError) as caught:
        parse(url)
    assert str(caught.value) == f"{url} has no scheme, such as redis://: did you mean {meant}?"
    parse(meant)


@pytest.mark.parametrize("url", ["", "redis", "me:open-sesame@host:6379", "redis:host", "http://host", "a b"])
def test_what_cannot_be_understood_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(UrlError) as caught:
        parse(url)
    assert "sesame" not in str(caught.value)


def test_a_password_is_never_shown() -> None:
    for url in (
        "redis://me:open-sesame@h/0",
        "redis://h?password=open-sesame",
        f"rediss://h?ssl_password=open-sesame&ssl_certfile={certificate('client')}",
        "sentinel://me:open-sesame@a,b/shop",
        "unix://:open-sesame@/run/s.sock",
    ):
        assert "open-sesame" in passwords(url)
        assert "sesame" not in shown(url) + repr(parse(url))
    assert passwords("redis://:a%2Fb@h") == {"a%2Fb", "a/b"}
    assert passwords(None) == passwords("redis://me@h") == passwords("redis://[::1") == set()


def test_a_clusters_url_names_seeds_and_credentials() -> None:
    target = parse("cluster://me:p%40ss@one,two:7001,[::1]:7002/", "{shop:0}:")
    assert target.seeds == (("one", 6379), ("two", 7001), ("::1", 7002))
    assert (target.options["username"], target.options["password"]) == ("me", "p@ss")
    assert (target.tag, target.tls) == ("{shop:0}:", False)
    assert target.shown == "cluster://me:***@one,two:7001,[::1]:7002/"
    secure = parse("clusters://one?ssl_cert_reqs=none&socket_timeout=3")
    assert (secure.tls, secure.options["ssl_cert_reqs"], secure.options["socket_timeout"]) == (True, "none", 3.0)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("cluster://", "names no node: use cluster://host:6379,host:6379"),
        ("cluster://one,,two", "names no node"),
        ("clusters://one:port", "names no node: use clusters://host:6379,host:6379"),
        ("cluster://one/3", "names the database '3': on a cluster Headrace uses 0 alone"),
        ("cluster://one?db=1", "has the option 'db', which is unknown"),
        ("cluster://one?ssl_ca_certs=/x", "which is for TLS: write clusters:// instead of cluster://"),
    ],
)
def test_a_clusters_url_that_cannot_be_used_says_why(url: str, says: str) -> None:
    with pytest.raises(UrlError, match=re.escape(says)):
        parse(url)
