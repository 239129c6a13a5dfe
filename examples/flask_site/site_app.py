"""A site whose jobs read the configuration of the site: each job runs in an application context."""

from flask import Flask, abort, current_app, request

from headrace import Headrace, Tasks
from headrace.contrib.flask import init_app
from headrace.errors import JobNotFound

tasks = Tasks(retries=3, timeout=30)


@tasks.task
def greet(name: str) -> str:
    return f"{current_app.config['GREETING']}, {name}"


def create_app() -> Flask:
    app = Headrace()
    app.include(tasks)
    site = Flask(__name__)
    site.config["GREETING"] = "hello"
    init_app(site, app)

    @site.post("/greetings")
    def start() -> tuple[dict[str, str], int]:
        return {"id": greet.enqueue(request.form["name"]).id}, 202

    @site.get("/greetings/<id>")
    def result(id: str) -> dict[str, object]:
        try:
            record = app.job(id).refresh()
        except JobNotFound:
            abort(404)
        return {"state": record.state, "greeting": record.result if record.state == "succeeded" else None}

    return site
