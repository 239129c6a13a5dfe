from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.errors import AppImportError
from headrace.loader import load

HEAD = "from headrace import Headrace\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    path, known = sys.path[:], set(sys.modules)
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - known:
        del sys.modules[name]


def test_the_named_application_is_found_in_the_current_directory(here: Path) -> None:
    (here / "shop_a.py").write_text(HEAD + "class space: app = Headrace('redis://x')\napp = Headrace('redis://y')\n")
    assert load("shop_a:app").settings.url == "redis://y"
    assert load("shop_a:space.app").settings.url == "redis://x"
    assert load("shop_a").settings.url == "redis://y"
    assert sys.path[0] == str(here)


def test_the_only_application_needs_no_name(here: Path) -> None:
    (here / "shop_b.py").write_text(HEAD + "queue = also = Headrace('redis://x')\n")
    assert load("shop_b").settings.url == "redis://x"


@pytest.mark.parametrize(
    ("code", "target", "text"),
    [
        ("", "m", "the module 'm' holds no application: it needs one, such as app = Headrace()"),
        ("", "m:app", "m:app does not exist: it holds no application"),
        ("one = Headrace('redis://x')", "m:app", "m:app does not exist: did you mean m:one?"),
        ("a = Headrace('redis://x')\nb = Headrace('redis://x')", "m", "holds 2 applications: name one of m:a, m:b"),
        ("a = 3\nb = Headrace('redis://x')", "m:a", "m:a is a int, not a Headrace application; did you mean m:b?"),
    ],
)
def test_what_is_missing_is_told_with_what_there_is(here: Path, code: str, target: str, text: str) -> None:
    (here / "m.py").write_text(HEAD + code)
    with pytest.raises(AppImportError) as caught:
        load(target)
    assert text in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_factory_is_called_and_a_site_stands_for_its_application(here: Path) -> None:
    (here / "shop_f.py").write_text(
        HEAD + "app = Headrace('redis://x')\nclass Site: extensions = {'headrace': app}\n"
        "def create_app(): return Site()\ndef make(): return app\ndef fail(): 1 / 0\nsite = Site()\n"
    )
    for target in ("create_app()", "make()", "site", "app"):
        assert load(f"shop_f:{target}").settings.url == "redis://x"
    with pytest.raises(AppImportError, match=r"(?s)shop_f:fail\(\) raised: ZeroDivisionError.*def fail\(\): 1 / 0"):
        load("shop_f:fail()")
    with pytest.raises(AppImportError, match=r"shop_f:site is a Site: leave out the parentheses"):
        load("shop_f:site()")


@pytest.mark.parametrize("target", ["", ":app", "a b:app", "tasks.py", "./tasks.py:app", "3:app"])
def test_what_names_nothing_is_told(here: Path, target: str) -> None:
    with pytest.raises(AppImportError, match=r"names no application.*such as tasks:app"):
        load(target)


def test_a_module_that_is_not_there(here: Path) -> None:
    with pytest.raises(AppImportError) as caught:
        load("absent:app")
    assert f"there is no module 'absent' in {here}" in str(caught.value)
    (here / "pack").mkdir()
    (here / "pack" / "__init__.py").touch()
    with pytest.raises(AppImportError, match=r"there is no module 'pack.absent' in"):
        load("pack.absent:app")
    with pytest.raises(AppImportError, match=r"there is no module 'absent.too' \(there is no 'absent'\)"):
        load("absent.too:app")


def test_a_module_that_raises_shows_their_code_and_nothing_else(here: Path) -> None:
    (here / "broken.py").write_text("def read():\n    return 1 / 0\n\nread()\n")
    with pytest.raises(AppImportError) as caught:
        load("broken:app")
    text = str(caught.value)
    assert text.startswith("the module 'broken' raised while it was imported: ZeroDivisionError: division by zero\n\n")
    assert text.count('File "') == 2
    assert 'broken.py", line 4' in text
    assert 'broken.py", line 2, in read' in text
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert "importlib" not in text
    assert "loader" not in text


def test_a_module_of_theirs_that_needs_another(here: Path) -> None:
    (here / "needs.py").write_text("import not_installed_here.part\n")
    with pytest.raises(AppImportError) as caught:
        load("needs:app")
    assert "is 'not_installed_here' installed here" in str(caught.value)
    assert 'needs.py", line 1' in str(caught.value)


def test_a_module_that_is_no_python(here: Path) -> None:
    (here / "wrong.py").write_text("def (:\n")
    with pytest.raises(AppImportError, match="SyntaxError"):
        load("wrong")


def test_a_module_that_runs_its_program(here: Path) -> None:
    (here / "script.py").write_text("import sys\nsys.exit(3)\n")
    with pytest.raises(AppImportError, match="SystemExit: 3; keep what a program does under `if __name__"):
        load("script:app")


@pytest.mark.parametrize("kind", ["GeneratorExit", "BaseException"])
def test_a_module_that_raises_what_is_no_exception(here: Path, kind: str) -> None:
    (here / f"raises{kind}.py").write_text(f"raise {kind}('gone')\n")
    with pytest.raises(AppImportError, match=f"raised while it was imported: {kind}: gone"):
        load(f"raises{kind}:app")


def test_a_wrong_option_in_their_module_is_shown_with_its_line(here: Path) -> None:
    (here / "options.py").write_text(HEAD + "app = Headrace('redis://x')\n@app.task(priority=1000)\ndef f(): ...\n")
    with pytest.raises(AppImportError) as caught:
        load("options")
    assert "OptionsError: priority must be a whole number from -100 to 100, not 1000" in str(caught.value)
    assert 'options.py", line 3' in str(caught.value)
