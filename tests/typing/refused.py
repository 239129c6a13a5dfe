"""What type checkers must refuse: each line that is marked, and no other. Never run; see test_typing.py."""

from __future__ import annotations

from collections.abc import Iterator

from headrace import Flow, Headrace, Node, Secret, Tasks
from headrace.testing import Kit

app = Headrace()


@app.task
def fetch(url: str, *, tries: int = 1) -> bytes:
    return url.encode() * tries


@app.task(timeout=30)
async def notify(user: int) -> str:
    return str(user)


@app.task
def login(pin: Secret[str]) -> None: ...


tasks = Tasks()


@tasks.task(timeout=30)
def send(to: str) -> None: ...


@tasks.task(time_out=30)  # refused
def sends(to: str) -> None: ...


send.enqueue(7)  # refused
app.include(tasks, "mail")  # refused
app.include(send)  # refused


@app.lifespan  # refused
def lifeless() -> int:
    return 1


@app.lifespan(kind="threads")  # refused
def nowhere() -> Iterator[None]:
    yield


@tasks.lifespan  # refused
def needs(url: str) -> Iterator[None]:
    yield


def takes_text(node: Node[str]) -> None: ...


@app.workflow
def thumbnails(flow: Flow, url: str, sizes: list[int]) -> None:
    image = flow.run(fetch, url)
    takes_text(image)  # refused
    flow.run(fetch, url, prio=3)  # refused
    flow.run(fetch, url, on_failure="abort")  # refused
    flow.run(7)  # refused
    flow.run(fetch, url, when=True)  # refused
    flow.map(fetch, [url], undo=fetch)  # refused
    flow.run(fetch, url, options={"colour": 3})  # refused
    image.on_failure("never")  # refused
    takes_text(flow.map(fetch, [url]))  # refused


def no_flow(url: str) -> None: ...


class Money:
    cents = 0


app.types.add("Money", str, str)  # refused
app.types.add(Money, "cents", Money)  # refused
fetch.enqueue_json(["u"])  # refused
app.job(7)  # refused
app.job("0" * 21).refresh().finished - 1  # refused


app.workflow(no_flow)  # refused
app.workflow(ttl="long")  # refused
app.workflow(colour=3)  # refused
thumbnails.create(7, [1])  # refused
thumbnails.create("u")  # refused
thumbnails.create("u", ["a"])  # refused
thumbnails.options(name="x")  # refused
thumbnails.options(key="x").create("u")  # refused
thumbnails.page(definition="x")  # refused
thumbnails.ids(after="x")  # refused
app.workflows.page(colour=3)  # refused
app.workflows.page(order="up")  # refused
app.workflows.ids("failed")  # refused
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
app.task(trace="both")  # refused
login.enqueue(7)  # refused
app.task(limits=[7])  # refused
app.limit("api", 500)  # refused
fetch.options(limits=["api"])  # refused
app.task(request_id="x")  # refused
app.enqueue_many([fetch])  # refused
app.enqueue_packed([fetch.job("u")])  # refused
fetch.options(headers={"tenant": 7})  # refused
app.wait([fetch])  # refused
app.wait([fetch.enqueue("u")], return_when="ANY")  # refused
app.as_completed(["id"])  # refused
Kit(app).stub(fetch, returns="text")  # refused
Kit(app, mode="eager")  # refused
Kit(app).drain(retry=True)  # refused
text: str = fetch.enqueue("u").result()  # refused


async def code() -> object:
    await notify.aenqueue("seven")  # refused
    number: int = await (await notify.aenqueue(7)).aresult()  # refused
    return number, text
