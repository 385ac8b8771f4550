import io
import logging
import os

import pytest

from capsbench.cli.messages import Session

log = logging.getLogger("capsbench.test")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(screen: str) -> list[str]:
    """What a terminal shows of a text: a carriage return and "clear to the end" begin the line again."""
    return [line.split("\r\x1b[K")[-1] for line in screen.split("\n")]


@pytest.fixture
def said(monkeypatch):
    def say(stream: io.StringIO) -> str:
        monkeypatch.setattr("sys.stdout", stream)
        with Session().listening():
            log.info("epoch 1", extra={"passing": True})
            log.info("epoch 2", extra={"passing": True})
            log.info("trained")
            log.info("epoch 1 of the next", extra={"passing": True})
        return stream.getvalue()

    return say


def test_on_a_terminal_passing_messages_share_a_line(said):
    assert shown(said(Terminal())) == ["trained", "epoch 1 of the next"]


def test_elsewhere_each_message_is_a_plain_line(said):
    assert said(io.StringIO()) == "epoch 1\nepoch 2\ntrained\nepoch 1 of the next\n"


def test_a_passing_message_does_not_wrap(monkeypatch):
    stream = Terminal()
    monkeypatch.setattr("sys.stdout", stream)
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((20, 24)))
    with Session().listening():
        log.info("a" * 50, extra={"passing": True})
        log.info("b" * 50)
    assert stream.getvalue().endswith("b" * 50 + "\n")
    assert "a" * 19 in stream.getvalue()
    assert "a" * 20 not in stream.getvalue()
