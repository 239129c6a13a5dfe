"""Where tasks and workflow definitions are registered: in an application, or apart from any until one includes them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeAlias, TypeVar, Unpack, cast, overload
from weakref import WeakSet

from headrace.errors import OptionsError
from headrace.model import option_checks
from headrace.model.form import Options, of_task
from headrace.model.limit_rules import limit_names
from headrace.model.option_checks import flag
from headrace.model.options import KINDS, TaskKind, TaskOptions
from headrace.tasks.app_context import AppContext, F, Lifespan, LifespanFunction, kinds_of, lifespan_of
from headrace.tasks.limit import check_cost
from headrace.tasks.task import Task, check_found, place_of, task_name_of
from headrace.workflows.definition import Registered

if TYPE_CHECKING:
    from typing import Concatenate

    from headrace.workflows.definition import Workflow, WorkflowOptions
    from headrace.workflows.scope import Flow

P = ParamSpec("P")
R = TypeVar("R")

_OF_ONE = frozenset({"name", "loose"})  # options that no two tasks have in common
# All sets of this process, for :func:`unused_set_warnings`.
_made: WeakSet[Tasks] = WeakSet()


class Decorator(Protocol):
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, R, Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R, R]: ...


class WorkflowDecorator(Protocol):
    def __call__(self, function: Callable[Concatenate[Flow, P], object], /) -> Workflow[P]: ...


class Tasks:
    """Tasks and workflows that are defined before, or apart from, the application that they belong to.

    ``tasks = Tasks()`` in any module, ``@tasks.task`` above its functions, and where the application is made,
    ``app.include(tasks)``. The module needs no application to be imported, so it never imports one in a circle.
    What is defined after the inclusion belongs to the application at once. One set belongs to one application.

    Until it is included its functions run in place; to enqueue one raises :class:`OptionsError`.

    Attributes:
        tasks: by name, what was defined here; a workflow is a task too, by the name ``workflow:...``.
        types: as ``app.types``; the application's, once it is included.
        lifespans: in the order of their definition.
        registered, context: of the application, once it is included.
    """

    def __init__(self, **defaults: Unpack[TaskOptions]) -> None:
        """Make an empty set. ``defaults``: options of its tasks that say nothing else, such as ``queue="mail"``; they
        come before those of the application. Raises OptionsError: an option is unknown, out of range, or cannot be that
        of several tasks.
        """
        self._defaults = task_defaults(defaults)
        self.registered = Registered()
        self.context = self.registered.context
        self.types = self.context.types
        self.tasks: dict[str, Task[..., Any, Any]] = {}
        self.lifespans: list[Lifespan] = []
        _made.add(self)

    @overload
    def task(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, R, Coroutine[Any, Any, R]]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R, R]: ...
    @overload
    def task(self, **options: Unpack[TaskOptions]) -> Decorator: ...
    def task(self, *functions: Callable[..., Any], **options: Any) -> Any:
        """Make a function a task, as :meth:`headrace.Headrace.task` does."""

        def decorate(function: Callable[..., Any]) -> Any:
            task = define_task(self.registered, _over(self._defaults, options, function), function)
            self.tasks[task.name] = task
            return task

        return decorated(decorate, functions, options)

    @overload
    def workflow(self, function: Callable[Concatenate[Flow, P], object], /) -> Workflow[P]: ...
    @overload
    def workflow(self, **options: Unpack[WorkflowOptions]) -> WorkflowDecorator: ...
    def workflow(self, *functions: Callable[..., object], **options: Any) -> Any:
        """Make a function the definition of workflows, as :meth:`headrace.Headrace.workflow` does."""

        def decorate(function: Callable[..., object]) -> Any:
            made = define_workflow(self.registered, options, function)
            self.tasks[made.definition.task.name] = made.definition.task
            return made

        return decorate(functions[0]) if functions else decorate

    @overload
    def lifespan(self, function: F, /) -> F: ...
    @overload
    def lifespan(self, *, kind: TaskKind | Collection[TaskKind] | None = None) -> Callable[[F], F]: ...
    def lifespan(self, *functions: F, kind: TaskKind | Collection[TaskKind] | None = None) -> F | Callable[[F], F]:
        """Open something in each runner, as :meth:`headrace.Headrace.lifespan` does, for the whole application."""

        def decorate(function: F) -> F:
            self.lifespans.append(define_lifespan(self.context, kind, function))
            return function

        kinds_of(kind)
        return decorate(functions[0]) if functions else decorate

    def __repr__(self) -> str:
        return f"<Tasks with {len(self.tasks)} tasks>"


def decorated(decorate: Callable[..., Any], functions: tuple[Callable[..., Any], ...], options: dict[str, Any]) -> Any:
    """``@app.task`` has its function at once, ``@app.task(...)`` gets it later, when its options were checked."""
    if functions:
        (function,) = functions
        return decorate(function)
    _read(None, options)
    return decorate


def define_task(registered: Registered, options: dict[str, Any], function: Callable[..., Any]) -> Task[..., Any, Any]:
    own = options.get("name")
    name = task_name_of(function, own)
    if own is None or inspect.isbuiltin(function):
        check_found(function)
    try:
        kind, loose, limits, trace, encrypt, defaults = _read(
            function, _over(registered.context.task_defaults, options, function)
        )
        task: Task[..., Any, Any] = Task(
            registered.context, name, function, kind, defaults, loose=loose, limits=limits, encrypt=encrypt
        )
        task.given, task.trace = options, trace
        check_cost(registered.context.limits_of(limits, defaults.queue), defaults.cost)
    except OptionsError as error:
        raise OptionsError(f"task {name}: {error}") from None
    check_encryption(registered.context, name, encrypt=encrypt)
    if name in registered.tasks:
        raise _duplicate("task", name, registered.tasks[name].function, function)
    registered.tasks[name] = task
    return task


def check_encryption(context: AppContext, task: str, *, encrypt: bool) -> None:
    """Raises OptionsError: a task is to be encrypted, and its application has no key."""
    if encrypt and context.included and (context.client.keys.seal is None or not context.client.keys.seal.encrypting):
        raise OptionsError(f"task {task}: encrypt=True needs the setting encryption_keys, for producers and workers")


def task_defaults(options: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Options for several tasks. Raises OptionsError: one is unknown, out of range, or belongs to one task."""
    given = {name: value for name, value in (options or {}).items() if value is not None}
    for name in _OF_ONE & given.keys():
        raise OptionsError(f"{name} cannot be a default of tasks: give it to each @app.task({name}=...)")
    _read(None, given)
    return given


def _over(defaults: Mapping[str, Any], options: Mapping[str, Any], function: Callable[..., Any]) -> dict[str, Any]:
    known = dict(defaults)
    if inspect.iscoroutinefunction(function):
        known.pop("kind", None)
    return known | {name: value for name, value in options.items() if value is not None}


def define_workflow(registered: Registered, options: dict[str, Any], function: Callable[..., object]) -> Workflow[...]:
    # Loaded at first use: a program without workflows must not pay for them.
    from headrace.workflows.definition import Workflow, check_function

    check_function(function)
    given = dict(options)
    name = task_name_of(function, given.pop("name", None))
    if name in registered.definitions:
        raise _duplicate("workflow", name, registered.definitions[name].definition.function, function)
    made: Workflow[...] = Workflow(registered, name, function, given)
    registered.definitions[name] = made
    nested = made.definition.task
    registered.tasks[nested.name] = nested
    return made


def define_lifespan(
    context: AppContext, kind: TaskKind | Collection[TaskKind] | None, function: LifespanFunction
) -> Lifespan:
    lifespan = lifespan_of(function, kind)
    context.lifespans.append(lifespan)
    return lifespan


def include(app: Registered, many: tuple[object, ...], *, move: bool) -> None:
    """Have an application include sets of tasks, all or none; see :meth:`headrace.Headrace.include`."""
    new: dict[str, Task[..., Any, Any]] = {}
    joining: list[Tasks] = []
    types = app.context.types
    for one in many:
        if not isinstance(one, Tasks):
            raise OptionsError(_no_tasks(one))
        if one.registered.tasks is app.tasks or one in joining:
            continue
        if one.context.included and not move:
            raise OptionsError(
                f"{_called(one)} are in another application of this process already, and tasks have one: include them "
                f"once; or, in a program that makes its application anew (tests do), say app.include(..., move=True)"
            )
        for name, task in one.tasks.items():
            if (known := app.tasks.get(name) or new.get(name)) is not None:
                raise _duplicate("task", name, known.function, task.function)
            new[name] = task
        types = types.joined(one.types)
        joining.append(one)
    changed = _tasks_of_other_defaults(app.context.task_defaults, joining)
    _check_keys(app.context, joining, changed)
    for one in joining:
        old = one.registered
        definitions = {name: made for name, made in old.definitions.items() if made.definition.task.name in one.tasks}
        if old.context.included:
            for name in one.tasks:
                del old.tasks[name]
            for name in definitions:
                del old.definitions[name]
            kept = [lifespan for lifespan in old.context.lifespans if lifespan not in one.lifespans]
            old.context.lifespans[:] = kept
        app.definitions.update(definitions)
        app.context.lifespans += one.lifespans
        old.join(app)
    for task, (kind, _, limits, trace, encrypt, options) in changed:
        task.settle_in(app.context, kind, options, limits, encrypt=encrypt)
        task.trace = trace
    app.tasks.update(new)


def _check_keys(context: AppContext, joining: list[Tasks], changed: list[tuple[Task[..., Any, Any], _Read]]) -> None:
    encrypted = {task.name: task.signature.encrypted for one in joining for task in one.tasks.values()}
    for name, encrypt in (encrypted | {task.name: read[4] for task, read in changed}).items():
        check_encryption(context, name, encrypt=encrypt)


def _tasks_of_other_defaults(
    defaults: Mapping[str, Any], joining: list[Tasks]
) -> list[tuple[Task[..., Any, Any], _Read]]:
    tasks = (task for one in joining if one.context.task_defaults != defaults for task in one.tasks.values())
    return [
        (task, _read(task.function, _over(defaults, task.given, task.function)))
        for task in tasks
        if task.given is not None
    ]


def unused_set_warnings() -> list[str]:
    found = (one for one in _made if one.tasks and not one.context.included)
    return sorted(
        f"{_called(one)} are in no application: app.include(...) with them has them run here" for one in found
    )


def _called(one: Tasks) -> str:
    module = next((task.function.__module__ for task in one.tasks.values()), None)
    return repr(one) if module is None else f"the Tasks of {module}"


def _no_tasks(one: object) -> str:
    hint = ""
    if inspect.ismodule(one):
        names = [name for name, value in vars(one).items() if isinstance(value, Tasks)]
        hint = f": did you mean {', '.join(f'{one.__name__}.{name}' for name in names)}?" if names else ""
    elif isinstance(one, Task):
        hint = f": {cast('Task[..., Any, Any]', one).name} is a single task, give the Tasks that it was made with"
    return f"app.include takes headrace.Tasks, not {one!r:.80}{hint or ': tasks = Tasks() makes them'}"


def _duplicate(what: str, name: str, known: Callable[..., Any], other: Callable[..., Any]) -> OptionsError:
    return OptionsError(
        f"there is a {what} {name} already ({place_of(known)}): give the one at {place_of(other)} another name "
        f"with @app.{what}(name=...)"
    )


_Read: TypeAlias = tuple[TaskKind, bool, tuple[str, ...], str, bool, Options]


def _read(function: Callable[..., Any] | None, options: Mapping[str, Any]) -> _Read:
    """The options of a task but its name: kind, loose, limits, trace, encrypt; and the defaults of its jobs."""
    given = {name: value for name, value in options.items() if name != "name"}
    kind = _kind(function, given.pop("kind", None))
    loose = flag("loose", given.pop("loose", None) or False)
    limits = limit_names("limits", given.pop("limits", None) or ())
    trace = given.pop("trace", None)
    encrypt = flag("encrypt", given.pop("encrypt", None) or False)
    return kind, loose, limits, "" if trace is None else option_checks.trace("trace", trace), encrypt, of_task(given)


def _kind(function: Callable[..., Any] | None, kind: Any) -> TaskKind:
    """Who runs a function: coroutines need an event loop, and nothing else runs on it."""
    if kind is not None and kind not in KINDS:
        raise OptionsError(f"kind must be one of {', '.join(KINDS)}, not {kind!r}")
    if function is None:
        return cast(TaskKind, kind)
    if not inspect.iscoroutinefunction(function):
        if kind == "async":
            raise OptionsError("kind='async' runs coroutines: write `async def`, or take process, fork or thread")
        return cast(TaskKind, kind or "process")
    if kind not in (None, "async"):
        raise OptionsError(
            f"a coroutine function runs on an event loop, so kind={kind!r} cannot be: leave kind out, or write `def`"
        )
    return "async"
