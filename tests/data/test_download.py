import functools
import hashlib
import http.server
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from capsbench.data.download import RemoteFile, fetch
from capsbench.errors import InputError

CONTENT = bytes(range(256)) * 1000
MD5 = hashlib.md5(CONTENT).hexdigest()


class Handler(http.server.SimpleHTTPRequestHandler):
    asked: list[str] = []

    def do_GET(self):
        self.asked.append(self.path)
        if self.path.startswith("/short/"):  # promises more than it sends
            self.send_response(200)
            self.send_header("Content-Length", str(len(CONTENT)))
            self.end_headers()
            self.wfile.write(CONTENT[:1000])
            return
        super().do_GET()

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server(tmp_path):
    root = tmp_path / "www"
    for name, content in (("good", CONTENT), ("bad", b"something else")):
        (root / name).mkdir(parents=True)
        (root / name / "file").write_bytes(content)
    Handler.asked = []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=root)) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


def remote(*mirrors):
    return RemoteFile("file", MD5, tuple(f"{m}/" for m in mirrors))


def test_a_file_arrives_whole_under_its_name(server, tmp_path):
    path = fetch(remote(f"{server}/good"), tmp_path / "data")
    assert path.read_bytes() == CONTENT
    assert sorted(p.name for p in path.parent.iterdir() if p.suffix != ".lock") == ["file"]


@pytest.mark.parametrize("first", ["absent", "bad", "short"])
def test_the_next_mirror_is_tried(server, tmp_path, first):
    path = fetch(remote(f"{server}/{first}", f"{server}/good"), tmp_path)
    assert path.read_bytes() == CONTENT
    assert Handler.asked == [f"/{first}/file", "/good/file"]


@pytest.mark.parametrize(
    ("mirror", "message"),
    [("bad", f"md5 .*, expected {MD5}"), ("short", "1,000 of 256,000 bytes"), ("absent", "Not Found|File not found")],
)
def test_what_is_wrong_is_said_and_nothing_is_left(server, tmp_path, mirror, message):
    with pytest.raises(InputError, match=message) as caught:
        fetch(remote(f"{server}/{mirror}"), tmp_path / "data")
    assert "\n" not in str(caught.value)
    assert f"put the file at {tmp_path}/data/file by hand" in str(caught.value)
    assert not [p for p in (tmp_path / "data").iterdir() if not p.name.endswith(".lock")]


def test_no_network_is_one_clear_line(tmp_path):
    with pytest.raises(InputError, match="is there a network"):
        fetch(remote("http://127.0.0.1:9"), tmp_path)


def test_a_folder_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "data").write_text("a file, not a folder")
    with pytest.raises(InputError, match="cannot write"):
        fetch(remote("http://127.0.0.1:9"), tmp_path / "data")


def test_two_at_once_download_once(server, tmp_path):
    with ThreadPoolExecutor(2) as pool:
        paths = list(pool.map(lambda _: fetch(remote(f"{server}/good"), tmp_path), range(2)))
    assert paths[0].read_bytes() == CONTENT
    assert Handler.asked == ["/good/file"]
