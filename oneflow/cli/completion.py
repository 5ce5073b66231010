"""``oneflow completion bash``: what a shell has to run for the Tab key to complete subcommands, options and files."""

from __future__ import annotations

from collections.abc import Sequence

from .._base.command import Parser
from .._base.extras import need

_SHELLS = ("bash", "zsh", "fish")


def parser() -> Parser:
    """The command line."""
    made = Parser(
        prog="oneflow completion", description="Prints the completion script for a shell: subcommands, options and files, by the "
        "Tab key. Needs the extra [completion].",
        epilog='example: eval "$(oneflow completion bash)" in ~/.bashrc, '
        'eval "$(oneflow completion zsh)" in ~/.zshrc after compinit, '
        "oneflow completion fish | source in ~/.config/fish/config.fish",
    )  # fmt: skip
    made.add_argument("shell", choices=_SHELLS)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the script. Returns 0."""
    shell = parser().parse_args(arguments).shell
    argcomplete = need("argcomplete", "oneflow completion")
    print(argcomplete.shellcode(["oneflow"], shell="bash" if shell == "zsh" else shell))  # one script serves bash and zsh
    return 0
