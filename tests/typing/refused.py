"""What type checkers must refuse: each line that is marked, and no other. Never run; see test_typing.py."""

from __future__ import annotations

from headrace import Headrace

app = Headrace()


@app.task
def fetch(url: str, *, tries: int = 1) -> bytes:
    return url.encode() * tries


@app.task(timeout=30)
async def notify(user: int) -> str:
    return str(user)


fetch.enqueue(7)  # refused
fetch.enqueue()  # refused
fetch.enqueue("u", tries="2")  # refused
fetch.enqueue("u", size=2)  # refused
fetch.job(7)  # refused
fetch.options(queue="low").enqueue(7)  # refused
fetch.options(queue="low").job()  # refused
fetch(7)  # refused
notify.enqueue("seven")  # refused
notify.options(delay=3).enqueue("seven")  # refused
fetch.options(prio=3)  # refused
fetch.options(priority="high")  # refused
fetch.options(kind="fork")  # refused
app.task(kind="rocket")  # refused
app.task(request_id="x")  # refused
app.enqueue_many([fetch])  # refused
text: str = fetch.enqueue("u").result()  # refused


async def code() -> object:
    await notify.aenqueue("seven")  # refused
    number: int = await (await notify.aenqueue(7)).aresult()  # refused
    return number, text
