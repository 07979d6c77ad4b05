"""What is printed of others' text and addresses."""

import pytest

from fewtune.errors import one_line, printable, quoted


@pytest.mark.parametrize(
    "foreign",
    [
        "\x1b[2J\x1b]0;title\x07",
        "a\nfewtune: forged",
        "a\r\tb",
        "\u202etxt.exe",
        "\x9b31m",
        "\ud800",
    ],
)
def test_no_text_of_others_steers_the_terminal_or_breaks_the_line(foreign):
    for shown in (printable(foreign), quoted(foreign)):
        assert shown.isprintable()
    assert quoted(f"ünï {foreign}").startswith("ünï ")


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("postgresql://me:pa:ss@host/db", "postgresql://***@host/db"),
        (
            "http://me:p@ss@host:1/a?access_token=abc&b=1",
            "http://***@host:1/a?access_token=***&b=1",
        ),
        ("http://host/?apikey=abc cannot be used", "http://host/?apikey=*** cannot be used"),
        ("tcp://host:8786", "tcp://host:8786"),
    ],
)
def test_secrets_of_addresses_are_masked(address, shown):
    assert one_line(f"MLflow at {address}") == f"MLflow at {shown}"
