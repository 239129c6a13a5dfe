"""The scripts of ``headrace completion``, in the shells that read them."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from headrace.cli.commands import MODULES

pytestmark = pytest.mark.system

# Asks the completion of bash as the line editor does: the words of a line, and which of them is completed.
BASH = """
eval "$("$1" -m headrace completion bash)"
shift
for line in "$@"; do
    read -ra COMP_WORDS <<< "$line"
    [[ $line == *' ' ]] && COMP_WORDS+=('')
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    _headrace
    echo ${COMPREPLY[*]}
done
"""
LINES = {
    "headrace jo": {"jobs"},
    "headrace ": {*MODULES, "--version", "--help"},
    "headrace jobs re": {"result", "retry"},
    "headrace worker --q": {"--queues", "--quiet"},
    "headrace worker tasks:app --q": {"--queues", "--quiet"},
    "headrace jobs list --state qu": {"quarantined"},
    "headrace worker --log ": {"text", "json"},
    "headrace worker --queues --q": set[str](),
    "headrace completion z": {"zsh"},
    "headrace unknown ": set[str](),
}


def test_bash_completes_commands_options_and_choices() -> None:
    command = ["bash", "--norc", "-c", BASH, "bash", sys.executable, *LINES]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    found = [set(words.split()) for words in shown.stdout.splitlines()]
    assert (dict(zip(LINES, found, strict=True)), shown.stderr) == (LINES, "")


@pytest.mark.skipif(shutil.which("fish") is None, reason="no fish here")
@pytest.mark.parametrize("line", [line for line in LINES if LINES[line]])
def test_fish_completes_commands_options_and_choices(line: str) -> None:
    code = f'{sys.executable} -m headrace completion fish | source; complete -C "{line}"'
    shown = subprocess.run(["fish", "--no-config", "-c", code], capture_output=True, text=True, check=True)
    assert set(shown.stdout.split()) >= LINES[line]


@pytest.mark.skipif(shutil.which("zsh") is None, reason="no zsh here")
def test_zsh_reads_its_script() -> None:
    script = subprocess.run([sys.executable, "-m", "headrace", "completion", "zsh"], capture_output=True, check=True)
    subprocess.run(["zsh", "-n"], input=script.stdout, check=True)


def test_the_script_is_made_without_the_driver() -> None:
    code = (
        "import sys; from headrace.cli.commands import run; run(['completion', 'bash']); "
        "print(*{'redis', 'hiredis', 'kombu'} & sys.modules.keys(), file=sys.stderr)"
    )
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert made.stderr.split() == []
