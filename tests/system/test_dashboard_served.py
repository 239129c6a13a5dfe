"""``headrace dashboard`` as a server of its own: under a prefix, by name, read only, with the token of each start."""

from __future__ import annotations

import http.client
import os
import re
import signal
import stat
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

from headrace import Headrace
from tests.browser.chromium import TOKEN, served
from tests.deadline import eventually


def get(address: str, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], str]:
    """One request as a program makes it that bears the token of operators, unless ``headers`` say otherwise."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)
    given = {"authorization": f"Bearer {TOKEN}", "accept": "text/html"} | headers
    connection.request(method, path, headers={name: value for name, value in given.items() if value})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, {name.lower(): value for name, value in answer.getheaders()}, text


def test_pages_below_a_prefix_lead_to_pages_below_it(url: str, tmp_path: Path) -> None:
    root = "/a/b"
    with served(url, tmp_path, "--prefix", "/a/b/") as address:
        assert urlsplit(address).path == root
        for path in (f"{root}/", f"{root}/queues", f"{root}/queues?after="):
            status, _, text = get(address, path)
            assert status == 200, path
            links = set(re.findall(r'(?:href|src|action)="(/[^"]*)"', text))
            assert links
            assert {link for link in links if not link.startswith(f"{root}/")} == set()
        # As typed by hand.
        status, headers, _ = get(address, root)
        assert status == 200 or get(address, urlsplit(headers["location"]).path)[0] == 200
        # A proxy may take the prefix away. The pages tell when they were read.
        eventually(lambda: get(address, "/queues")[2] == get(address, f"{root}/queues")[2], 60)
        assert get(address, f"{root}/static/live.js")[0] == 200


def test_who_bears_no_token_and_asks_for_another_name_is_refused(url: str, tmp_path: Path) -> None:
    with served(url, tmp_path, "--host", "Board.example", "--read-only") as address:
        status, headers, _ = get(address, "/jobs", authorization="")
        assert (status, urlsplit(headers["location"]).path) == (303, "/login")
        assert get(address, "/jobs", authorization="Bearer " + TOKEN[:-1])[0] in (303, 401)
        assert get(address, "/jobs", authorization="", accept="application/json")[0] == 401
        assert get(address, "/jobs", host="evil.example")[0] == 403
        assert get(address, "/jobs", host="board.example")[0] == 200
        status, _, text = get(address, "/queues/default/act/pause", "POST")
        assert (status, "read only" in text) == (403, True)
    assert "default" not in [queue.name for queue in Headrace(url).overview().queues if queue.paused]


def test_a_token_that_was_made_is_in_a_file_of_the_users_own(url: str, tmp_path: Path) -> None:
    environ = {name: value for name, value in os.environ.items() if name != "HEADRACE_DASHBOARD_TOKEN"}
    environ |= {"HEADRACE_URL": url, "HEADRACE_DIR": str(tmp_path / "own")}
    said = tmp_path / "said"
    with said.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "headrace", "dashboard", "--listen", "0"],
            cwd=tmp_path, env=environ, stdout=out, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        eventually(lambda: "the token is in" in said.read_text(), 60, what="where the token is")
        (path,) = (tmp_path / "own").rglob("dashboard-token")
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        token = path.read_text().strip()
        text = said.read_text()
        assert token not in text
        (address,) = re.findall(r"dashboard (http://\S+)/\n", text)
        assert urlsplit(address).hostname == "127.0.0.1"
        assert eventually(lambda: get(address, "/", authorization=f"Bearer {token}")[0], 60) == 200
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


def test_an_address_that_others_reach_wants_a_token_of_ones_own(url: str, tmp_path: Path) -> None:
    environ = {name: value for name, value in os.environ.items() if name != "HEADRACE_DASHBOARD_TOKEN"}
    done = subprocess.run(
        [sys.executable, "-m", "headrace", "dashboard", "--listen", "0.0.0.0:0"],
        cwd=tmp_path, env=environ | {"HEADRACE_URL": url}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "set HEADRACE_DASHBOARD_TOKEN" in done.stderr
