import errno
import hashlib
import http.server
import re
import subprocess
import sys
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from capsbench.data.readers import affnist, mnist, smallnorb
from capsbench.data.readers.download import RemoteFile, fetch, md5_of, sha256_of
from capsbench.errors import InputError

CONTENT = bytes(range(256)) * 1000
MD5 = hashlib.md5(CONTENT).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    """The first part of a path says how the server behaves; it notes (path, range) of each request."""

    asked: list[tuple[str, str | None]] = []

    def do_GET(self):
        how, wanted = self.path.split("/")[1], self.headers.get("Range")
        self.asked.append((self.path, wanted))
        if how == "absent":
            return self.send_error(404)
        content, start = CONTENT, 0
        if how == "slow":
            time.sleep(0.5)
        if how == "bad":
            content = b"something else"
        if how == "refuses" and wanted:
            return self.send_error(416)
        if how in ("ranges", "breaks", "elsewhere") and wanted:
            start = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1])
            if start >= len(content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(content)}")
                self.send_header("Content-Length", "0")
                return self.end_headers()
            self.send_response(206)
            said = 0 if how == "elsewhere" else start
            self.send_header("Content-Range", f"bytes {said}-{len(content) - 1}/{len(content)}")
        else:
            self.send_response(200)
        if how != "endless":
            self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        stops = {"short": 1000, "breaks": 100_000}.get(how, len(content))  # promises more than it sends
        return self.wfile.write(content[start : start + stops])

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server():
    Handler.asked = []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


def remote(*mirrors, md5=MD5):
    return RemoteFile("file", md5, tuple(f"{m}/" for m in mirrors))


def left_in(folder):
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock")


def test_a_file_arrives_whole_under_its_name(server, tmp_path):
    path = fetch(remote(f"{server}/ranges"), tmp_path / "data")
    assert path.read_bytes() == CONTENT
    assert left_in(path.parent) == ["file"]
    assert md5_of(path) == MD5
    assert Handler.asked == [("/ranges/file", None)]


@pytest.mark.parametrize("first", ["absent", "bad", "short"])
def test_the_next_mirror_is_tried(server, tmp_path, first):
    path = fetch(remote(f"{server}/{first}", f"{server}/ranges"), tmp_path)
    assert path.read_bytes() == CONTENT
    assert left_in(tmp_path) == ["file"]
    went_on = "bytes=1000-" if first == "short" else None
    assert Handler.asked == [(f"/{first}/file", None), ("/ranges/file", went_on)]


def test_a_mirror_that_is_down_is_passed_over(server, tmp_path):
    assert fetch(remote("http://127.0.0.1:9", f"{server}/plain"), tmp_path).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("mirror", "message", "left"),
    [
        ("bad", f"md5 .*, expected {MD5}", []),
        ("absent", "404 Not Found", []),
        ("short", "1,000 of 256,000 bytes arrived; .*resume", ["file.part"]),
    ],
)
def test_what_is_wrong_is_said_and_nothing_gets_the_name(server, tmp_path, mirror, message, left):
    with pytest.raises(InputError, match=message) as caught:
        fetch(remote(f"{server}/{mirror}"), tmp_path / "data")
    assert "\n" not in str(caught.value)
    assert f"put the file at {tmp_path}/data/file by hand (md5 {MD5})" in str(caught.value)
    assert left_in(tmp_path / "data") == left


def test_a_download_that_breaks_off_goes_on_where_it_stopped(server, tmp_path):
    for arrived in (100_000, 200_000):
        with pytest.raises(InputError, match=f"{arrived:,} of 256,000 bytes"):
            fetch(remote(f"{server}/breaks"), tmp_path)
        assert (tmp_path / "file.part").read_bytes() == CONTENT[:arrived]
    assert fetch(remote(f"{server}/breaks"), tmp_path).read_bytes() == CONTENT
    assert [wanted for _, wanted in Handler.asked] == [None, "bytes=100000-", "bytes=200000-"]


@pytest.mark.parametrize(("how", "requests"), [("plain", 1), ("refuses", 2), ("elsewhere", 2)])
def test_a_server_without_ranges_sends_all_of_it(server, tmp_path, how, requests):
    (tmp_path / "file.part").write_bytes(CONTENT[:5000])
    assert fetch(remote(f"{server}/{how}"), tmp_path).read_bytes() == CONTENT
    assert len(Handler.asked) == requests


@pytest.mark.parametrize("part", [b"of another version", CONTENT + b"and more", b"x" * len(CONTENT)])
@pytest.mark.parametrize("how", ["ranges", "plain"])
def test_a_piece_that_does_not_fit_is_fetched_anew(server, tmp_path, part, how):
    (tmp_path / "file.part").write_bytes(part)
    assert fetch(remote(f"{server}/{how}"), tmp_path).read_bytes() == CONTENT


def test_a_piece_that_is_whole_only_gets_its_name(server, tmp_path):
    (tmp_path / "file.part").write_bytes(CONTENT)
    assert fetch(remote(f"{server}/ranges"), tmp_path).read_bytes() == CONTENT
    assert Handler.asked == [("/ranges/file", f"bytes={len(CONTENT)}-")]


@pytest.fixture
def over_https(server, monkeypatch):
    """The server as if it were reached by https, and "redirected" as if that led to plain http."""
    plain = urllib.request.urlopen

    def reach(request, **options):
        secure = request.full_url
        request.full_url = secure.replace("https://", "http://", 1).replace("/redirected/", "/ranges/")
        response = plain(request, **options)
        response.url = request.full_url if "/redirected/" in secure else secure
        return response

    monkeypatch.setattr(urllib.request, "urlopen", reach)
    return server.replace("http://", "https://")


def test_without_a_known_checksum_the_length_must_hold(over_https, tmp_path):
    with pytest.raises(InputError, match=r"1,000 of 256,000 bytes.* by hand \(its checksum is unknown\)"):
        fetch(remote(f"{over_https}/short", md5=None), tmp_path)
    with pytest.raises(InputError, match="does not send the file's length"):
        fetch(remote(f"{over_https}/endless", md5=None), tmp_path)
    assert left_in(tmp_path) == ["file.part"]
    assert fetch(remote(f"{over_https}/ranges", md5=None), tmp_path).read_bytes() == CONTENT


def test_without_a_known_checksum_nothing_comes_over_plain_http(server, tmp_path):
    with pytest.raises(InputError, match=r"is not https, and the file's checksum is unknown") as caught:
        fetch(remote(f"{server}/ranges", f"{server}/plain", md5=None), tmp_path)
    assert "\n" not in str(caught.value)
    assert Handler.asked == []
    assert left_in(tmp_path) == []


def test_a_redirect_to_plain_http_is_not_followed_without_a_checksum(over_https, tmp_path):
    with pytest.raises(InputError, match=r"http://\S*/ranges/file is not https"):
        fetch(remote(f"{over_https}/redirected", md5=None), tmp_path)
    assert left_in(tmp_path) == []
    assert fetch(remote(f"{over_https}/redirected"), tmp_path).read_bytes() == CONTENT  # its checksum is known


def test_a_mirror_by_https_is_tried_after_one_by_http(server, over_https, tmp_path):
    mirrors = remote(f"{server}/ranges", f"{over_https}/plain", md5=None)
    assert fetch(mirrors, tmp_path).read_bytes() == CONTENT
    assert Handler.asked == [("/plain/file", None)]


@pytest.mark.parametrize("reader", [affnist, mnist, smallnorb])
def test_no_reader_has_a_mirror_that_it_could_not_use(reader, tmp_path, monkeypatch):
    """A file without a checksum has mirrors by https alone."""
    asked = []
    monkeypatch.setattr(reader, "fetch", lambda file, folder: asked.append(file))
    reader.download(tmp_path)
    assert asked
    assert all(file.md5 or mirror.startswith("https://") for file in asked for mirror in file.mirrors)


def test_checksums_of_files(tmp_path):
    (tmp_path / "file").write_bytes(b"abc")
    assert md5_of(tmp_path / "file") == "900150983cd24fb0d6963f7d28e17f72"
    assert sha256_of(tmp_path / "file") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_a_known_checksum_does_without_a_length(server, tmp_path):
    assert fetch(remote(f"{server}/endless"), tmp_path).read_bytes() == CONTENT


def test_no_network_is_one_clear_line(tmp_path):
    with pytest.raises(InputError, match=r"http://127.0.0.1:9/: .*refused.*check the network") as caught:
        fetch(remote("http://127.0.0.1:9"), tmp_path)
    assert "\n" not in str(caught.value)


def test_a_name_that_does_not_resolve_is_said(tmp_path):
    with pytest.raises(InputError, match=r"cannot download file.*check the network"):
        fetch(remote("http://nowhere.invalid"), tmp_path)


def test_a_folder_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "data").write_text("a file, not a folder")
    with pytest.raises(InputError, match="cannot write"):
        fetch(remote("http://127.0.0.1:9"), tmp_path / "data")


class FullDisk:
    """A file on a disk with room for 150,000 bytes more."""

    def __init__(self, file):
        self.file, self.room = file, 150_000

    def write(self, chunk):
        if len(chunk) > self.room:
            self.file.write(chunk[: self.room])
            raise OSError(errno.ENOSPC, "No space left on device")
        self.room -= len(chunk)
        return self.file.write(chunk)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()


def test_a_full_disk_keeps_what_arrived_for_the_next_time(server, tmp_path, monkeypatch):
    opened = Path.open

    def on_a_full_disk(path, mode="r", *arguments, **options):
        file = opened(path, mode, *arguments, **options)
        return FullDisk(file) if mode in ("wb", "ab") else file

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", on_a_full_disk)
        with pytest.raises(InputError, match=r"no space left .*make room and fetch again") as caught:
            fetch(remote(f"{server}/ranges", f"{server}/plain"), tmp_path)
    assert "\n" not in str(caught.value)
    assert left_in(tmp_path) == ["file.part"]
    assert fetch(remote(f"{server}/ranges"), tmp_path).read_bytes() == CONTENT
    assert Handler.asked == [("/ranges/file", None), ("/ranges/file", "bytes=150000-")]


def test_two_threads_at_once_download_once(server, tmp_path):
    with ThreadPoolExecutor(2) as pool:
        paths = list(pool.map(lambda _: fetch(remote(f"{server}/slow"), tmp_path), range(2)))
    assert paths[0].read_bytes() == CONTENT
    assert len(Handler.asked) == 1


def test_two_processes_at_once_download_once(server, tmp_path):
    code = (
        "from pathlib import Path; from capsbench.data.readers.download import RemoteFile, fetch;"
        f"fetch(RemoteFile('file', '{MD5}', ('{server}/slow/',)), Path('{tmp_path}'))"
    )
    running = [subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL) for _ in range(2)]
    assert [process.wait(timeout=60) for process in running] == [0, 0]
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert left_in(tmp_path) == ["file"]
    assert len(Handler.asked) == 1
