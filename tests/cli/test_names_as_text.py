"""Names that somebody else chose are shown as they are: no markup in them is read, and none stops a page."""

from __future__ import annotations

import pytest
from rich.table import Table

from jsam.cli.output import rendered


@pytest.mark.parametrize("name", ["[/b]", "[bold]x[/bold]", "[link=http://evil.example]x", ":smile:"])
def test_a_name_is_no_markup(name: str) -> None:
    """A server names its campaigns: one called `[/b]` must not take a client's statement away."""
    table = Table(title=name)
    table.add_column(name)
    table.add_row(name)
    assert rendered(table).count(name) == 3
