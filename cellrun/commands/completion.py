"""`cellrun completion`: print a script that completes commands and options in a shell."""

from typing import Annotated, Literal

import typer
from typer.completion import get_completion_script

PROGRAM = "cellrun"
VARIABLE = "_CELLRUN_COMPLETE"


def completion(
    shell: Annotated[
        Literal["bash", "zsh", "fish", "powershell"], typer.Argument(help="Name of your shell.")
    ],
) -> None:
    """Print a script for the completion of commands and options.

    For bash: source <(cellrun completion bash), for example in ~/.bashrc.
    """
    print(get_completion_script(prog_name=PROGRAM, complete_var=VARIABLE, shell=shell))
