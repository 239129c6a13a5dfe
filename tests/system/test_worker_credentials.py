"""A worker whose password changes while it runs, and one whose credentials end again and again."""

from __future__ import annotations

from pathlib import Path

from tests.store.test_credentials import rotate
from tests.system.fleet import NewFleet, NewServer


def brief() -> tuple[str, str, float]:
    return "shop", "first", 1.0


def test_a_worker_goes_on_after_its_password_has_changed(
    new_server: NewServer, new_fleet: NewFleet, tmp_path: Path
) -> None:
    server, file = new_server(), tmp_path / "password"
    rotate(client := server.client(), "first")
    file.write_text("first")
    fleet = new_fleet(server.url)
    worker = fleet.worker(url=server.url_of("shop"), settings={"password_file": file})
    fleet.ended(fleet.enqueue("process.add", 1, 1))
    # The server first: until the file has followed, the worker tries again.
    rotate(client, "second")
    fleet.until(lambda: "refused the credentials" in worker.log())
    file.write_text("second")
    fleet.ended(fleet.enqueue("process.add", 1, 1))
    fleet.check()


def test_a_worker_connects_anew_before_its_credentials_end(new_server: NewServer, new_fleet: NewFleet) -> None:
    server = new_server()
    rotate(client := server.client(), "first")
    fleet = new_fleet(server.url, lease=60.0)
    worker = fleet.worker(url=server.url_of("shop"), settings={"credentials": f"{__name__}:brief"})

    def connections() -> set[str]:
        return {one["id"] for one in client.client_list() if one["user"] == "shop"}

    first = connections()
    fleet.ended(fleet.enqueue("process.add", 1, 1))
    fleet.until(lambda: not first & connections())
    second = connections()
    fleet.until(lambda: not second & connections())
    fleet.ended(fleet.enqueue("process.add", 1, 1))
    assert "answer" not in worker.log(), worker.log()
    fleet.check()
