"""Fetching, checking and finding data files, against a real server on the loopback interface."""

import hashlib
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from pathsgd_lab.data import download
from pathsgd_lab.data.download import fetch, fetch_file
from pathsgd_lab.data.files import DATA_SETS, DataFile, DataSet, check, data_directory, list_files
from pathsgd_lab.errors import DataError

CONTENT = bytes(range(256)) * 1_200
CUT = 3 * download.CHUNK_BYTES


class Handler(BaseHTTPRequestHandler):
    """Serves CONTENT; the first part of the path says what goes wrong."""

    seen: list[tuple[str, str | None]]

    def do_GET(self) -> None:
        kind = self.path.strip("/").split("/")[0]
        asked = self.headers.get("Range")
        first_time = all(path != self.path for path, _ in self.seen)
        self.seen.append((self.path, asked))
        if kind == "absent":
            self.send_error(404)
            return
        body = {"corrupt": CONTENT[::-1], "long": CONTENT + b"more"}.get(kind, CONTENT)
        start = (
            int(asked.removeprefix("bytes=").removesuffix("-"))
            if asked and kind != "norange"
            else 0
        )
        if start:
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        cut = kind == "cut" or (kind == "flaky" and first_time)
        self.wfile.write(body[start : max(start, CUT)] if cut else body[start:])

    def log_message(self, *args: object) -> None:
        """Quiet."""


class Server:
    """The server and what it was asked."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str | None]] = []
        handler = type("BoundHandler", (Handler,), {"seen": self.seen})
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()

    def file(self, *kinds: str, path: str = "set/file.bin") -> DataFile:
        port = self._http.server_address[1]
        urls = tuple(f"http://127.0.0.1:{port}/{kind}/file.bin" for kind in kinds)
        return DataFile(path, len(CONTENT), hashlib.sha256(CONTENT).hexdigest(), urls)

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(download, "RETRY_SECONDS", 0.0)
    for proxy in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(proxy, raising=False)
    running = Server()
    yield running
    running.close()


def files_below(directory: Path) -> list[str]:
    return sorted(
        str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()
    )


def test_a_file_arrives_whole_with_progress(server: Server, tmp_path: Path) -> None:
    file = server.file("good")
    seen: list[int] = []
    path = fetch_file(file, tmp_path, lambda f, there: seen.append(there) if f is file else None)
    assert path == tmp_path / "set" / "file.bin"
    assert path.read_bytes() == CONTENT
    assert files_below(tmp_path) == ["set/file.bin"]
    assert seen == sorted(seen) and seen[-1] == len(CONTENT) and len(seen) > 2
    assert path.stat().st_mode & 0o044, "others may read it, as the umask allows"


def test_a_file_that_is_there_and_right_is_not_fetched_again(
    server: Server, tmp_path: Path
) -> None:
    file = server.file("good")
    fetch_file(file, tmp_path)
    asked = len(server.seen)
    assert fetch_file(file, tmp_path).read_bytes() == CONTENT
    assert len(server.seen) == asked


def test_a_file_that_is_there_and_wrong_is_replaced(server: Server, tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "file.bin").write_bytes(b"something else")
    assert fetch_file(server.file("good"), tmp_path).read_bytes() == CONTENT


def test_a_wrong_checksum_names_both_sums_and_keeps_nothing(server: Server, tmp_path: Path) -> None:
    file = server.file("corrupt")
    with pytest.raises(DataError) as caught:
        fetch_file(file, tmp_path)
    message = str(caught.value)
    assert file.sha256 in message and hashlib.sha256(CONTENT[::-1]).hexdigest() in message
    assert "\n" not in message
    assert files_below(tmp_path) == []


def test_the_next_mirror_is_tried(server: Server, tmp_path: Path) -> None:
    path = fetch_file(server.file("absent", "corrupt", "cut", "good"), tmp_path)
    assert path.read_bytes() == CONTENT
    assert files_below(tmp_path) == ["set/file.bin"]


def test_a_broken_connection_is_resumed_where_it_broke(server: Server, tmp_path: Path) -> None:
    assert fetch_file(server.file("flaky"), tmp_path).read_bytes() == CONTENT
    assert [asked for _, asked in server.seen] == [None, f"bytes={CUT}-"]


def test_an_interrupted_download_is_continued_by_the_next_call(
    server: Server, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match="could not be fetched"):
        fetch_file(server.file("cut"), tmp_path)
    assert files_below(tmp_path) == ["set/file.bin.part"], (
        "what arrived is kept, under another name"
    )
    assert (tmp_path / "set" / "file.bin.part").read_bytes() == CONTENT[:CUT]
    assert fetch_file(server.file("good"), tmp_path).read_bytes() == CONTENT
    assert server.seen[-1] == ("/good/file.bin", f"bytes={CUT}-")
    assert files_below(tmp_path) == ["set/file.bin"]


def test_a_server_without_ranges_starts_again(server: Server, tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "file.bin.part").write_bytes(CONTENT[:CUT])
    assert fetch_file(server.file("norange"), tmp_path).read_bytes() == CONTENT


@pytest.mark.parametrize("leftover", [b"x" * CUT, b"x" * len(CONTENT), b"x" * (len(CONTENT) + 5)])
def test_a_leftover_of_something_else_does_not_spoil_the_file(
    server: Server, tmp_path: Path, leftover: bytes
) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "file.bin.part").write_bytes(leftover)
    assert fetch_file(server.file("good"), tmp_path).read_bytes() == CONTENT
    assert files_below(tmp_path) == ["set/file.bin"]


def test_more_bytes_than_expected_are_refused(server: Server, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"sends more than the expected {len(CONTENT)} bytes"):
        fetch_file(server.file("long"), tmp_path)
    assert files_below(tmp_path) == []


def test_an_address_without_a_file_or_a_server_is_reported(server: Server, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="404"):
        fetch_file(server.file("absent"), tmp_path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/nobody"
        with pytest.raises(DataError, match="could not be fetched"):
            fetch_file(DataFile("a", 1, "0" * 64, (url,)), tmp_path)
    with pytest.raises(DataError, match="has no address to fetch it from"):
        fetch_file(DataFile("a", 1, "0" * 64), tmp_path)
    assert files_below(tmp_path) == []


@pytest.mark.parametrize("path", ["../escaped", "a/../../escaped", "/absolute", "a\\..\\b", ""])
def test_paths_out_of_the_directory_are_refused(server: Server, tmp_path: Path, path: str) -> None:
    with pytest.raises(DataError, match="is not a path inside a data directory"):
        fetch_file(server.file("good", path=path), tmp_path / "data")
    assert server.seen == [] and files_below(tmp_path) == []


def test_a_place_that_cannot_be_written_is_named(server: Server, tmp_path: Path) -> None:
    (tmp_path / "set").write_text("a file where a directory should be")
    with pytest.raises(DataError, match=r"cannot write .* choose another --data-dir"):
        fetch_file(server.file("good"), tmp_path)


def test_fetch_gets_all_files_of_a_set(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = (server.file("good", path="set/one"), server.file("good", path="set/two"))
    monkeypatch.setitem(DATA_SETS, "set", DataSet("A set", "free", files))
    assert fetch("set", tmp_path) == [tmp_path / "set" / "one", tmp_path / "set" / "two"]
    with pytest.raises(
        DataError, match="unknown data set 'mnits'; choose one of mnist, ptb, text8, set"
    ):
        fetch("mnits", tmp_path)


def test_check_sees_what_a_glance_does_not(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("right", "changed", "short", "missing")
    files = tuple(server.file("good", path=f"set/{name}") for name in names)
    monkeypatch.setattr(
        "pathsgd_lab.data.files.DATA_SETS", {"set": DataSet("A set", "free", files[:3], files[3:])}
    )
    (tmp_path / "set").mkdir()
    for name, content in (("right", CONTENT), ("changed", CONTENT[::-1]), ("short", CONTENT[:9])):
        (tmp_path / "set" / name).write_bytes(content)
    assert [status.condition for status in list_files(tmp_path)] == ["ok", "ok", "wrong", "missing"]
    checked = check(tmp_path)
    assert [status.condition for status in checked] == ["ok", "wrong", "wrong", "missing"]
    assert (
        files[1].sha256 in checked[1].detail
        and hashlib.sha256(CONTENT[::-1]).hexdigest() in checked[1].detail
    )
    assert checked[2].detail == f"9 bytes, expected {len(CONTENT)}"
    assert [status.required for status in checked] == [True, True, True, False]


def test_the_directory_is_the_argument_then_the_variable_then_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATHSGD_DATA", str(tmp_path / "variable"))
    assert data_directory(tmp_path / "argument") == tmp_path / "argument"
    assert data_directory() == tmp_path / "variable"
    monkeypatch.delenv("PATHSGD_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert "pathsgd" in data_directory().parts
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_directory("~/here") == tmp_path / "here"


def test_the_table_is_complete() -> None:
    files = [
        file
        for data_set in DATA_SETS.values()
        for file in (*data_set.files, *data_set.alternatives)
    ]
    assert len({file.path for file in files}) == len(files) == 9
    for file in files:
        assert len(file.sha256) == 64 and set(file.sha256) <= set("0123456789abcdef")
        assert file.size > 0
    for name, data_set in DATA_SETS.items():
        for file in data_set.files:
            assert file.path.startswith(f"{name}/")
            assert file.urls and all(url.endswith(file.path.split("/")[1]) for url in file.urls)
