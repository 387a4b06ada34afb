"""The `weir` command itself: what it lists is what there is."""

from __future__ import annotations

import click

from scanner.cli.app import weir


def test_every_command_is_where_the_list_says() -> None:
    """Each name leads to the command of that name, and each has a line of help."""
    context = click.Context(weir)
    names = weir.list_commands(context)
    assert {"serve", "load", "scan", "adopt", "add-column"} < set(names)
    for name in names:
        command = weir.get_command(context, name)
        assert command is not None
        assert command.name == name
        assert command.help
    assert weir.get_command(context, "nonsense") is None


def test_help_fits_a_terminal() -> None:
    """The help of every command fits 80 columns, its examples included."""

    def walk(command: click.Command, context: click.Context) -> None:
        assert [line for line in command.get_help(context).splitlines() if len(line) > 80] == []
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                assert inner is not None
                assert f"\n  {name} " in command.get_help(context)
                walk(inner, click.Context(inner, info_name=name, parent=context, terminal_width=80))

    # A command keeps the help option that it first had, for whoever asks next.
    walk(weir, click.Context(weir, info_name="weir", terminal_width=80, **weir.context_settings))
