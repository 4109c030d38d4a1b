"""A ZooKeeper server for tests, and a network that loses connections at the worst moment.

The server is that of Debian's packages. They are downloaded once and unpacked below `build/`, which
installs nothing; where that cannot be done, `find_jars` says why.
"""

import os
import random
import shutil
import signal
import socket
import subprocess
import threading
import time
from contextlib import closing, suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
UNPACKED = ROOT / "build" / "zookeeper"
PACKAGES = (
    "libzookeeper-java",
    "libdropwizard-metrics-java",
    "libslf4j-java",
    "libsnappy-java",
)
JARS = ("zookeeper", "zookeeper-jute", "metrics-core", "slf4j-api", "slf4j-simple", "snappy-java")
DOWNLOAD_SECONDS = 60
START_SECONDS = 120
MAX_SESSION_SECONDS = 60
PORTS = range(10_000, 32_768)
"""Below those that Linux gives to connections: while a server is down, none of them takes its port,
not even one that is made to that very port."""


class ZooKeeperMissingError(Exception):
    """There is no ZooKeeper to be had on this machine."""


def find_jars() -> list[Path]:
    """The server's class path; at first it is downloaded."""
    if not UNPACKED.exists():
        _unpack()
    jars = [UNPACKED / "usr" / "share" / "java" / f"{name}.jar" for name in JARS]
    missing = [jar.name for jar in jars if not jar.exists()]
    if missing:
        raise ZooKeeperMissingError(f"Debian's packages lack {', '.join(missing)}")
    return jars


def find_java() -> str:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None:
        raise ZooKeeperMissingError("there is no java")
    return java


def _unpack() -> None:
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        raise ZooKeeperMissingError("its packages are Debian's, and there is no apt-get")
    partial = UNPACKED.with_name(f"zookeeper.{os.getpid()}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        _download(partial)
        for package in partial.glob("*.deb"):
            _run(["dpkg-deb", "-x", str(package), str(partial)], partial)
        shutil.rmtree(partial / "apt", ignore_errors=True)
        with suppress(OSError):  # Another run may have been faster.
            partial.rename(UNPACKED)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _download(directory: Path) -> None:
    """With the machine's package lists, or with own ones where it has none or old ones."""
    apt = ["apt-get", "-o", "Acquire::http::Timeout=10", "-o", "Acquire::Retries=1"]
    try:
        _run([*apt, "download", *PACKAGES], directory)
    except ZooKeeperMissingError:
        lists = directory / "apt" / "lists" / "partial"
        lists.mkdir(parents=True)
        own = ["-o", f"Dir::State::lists={lists.parent}", "-o", f"Dir::Cache={directory / 'apt'}"]
        _run([*apt, *own, "update"], directory)
        _run([*apt, *own, "download", *PACKAGES], directory)


def _run(command: list[str], directory: Path) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DOWNLOAD_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise ZooKeeperMissingError(f"{command[0]} took too long") from error
    if done.returncode != 0:
        why = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise ZooKeeperMissingError(f"{command[0]} failed: {why}")


def free_port() -> int:
    pick = random.SystemRandom()
    while True:
        port = pick.choice(PORTS)
        with closing(socket.socket()) as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class ZooKeeperServer:
    """One server on the loopback interface; its data survives a kill, but not `wipe`."""

    def __init__(self, directory: Path) -> None:
        self._command = [
            *(find_java(), "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
            *("-Dzookeeper.admin.enableServer=false", "-Dzookeeper.forceSync=no"),
            *("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp"),
            os.pathsep.join(map(str, find_jars())),
            "org.apache.zookeeper.server.ZooKeeperServerMain",
        ]
        self.port = free_port()
        self._data = directory / "data"
        self._log = directory / "log"
        self._config = directory / "zoo.cfg"
        self._config.write_text(
            f"dataDir={self._data}\nclientPort={self.port}\nclientPortAddress=127.0.0.1\n"
            f"tickTime=500\nmaxClientCnxns=0\nmaxSessionTimeout={MAX_SESSION_SECONDS * 1000}\n"
        )
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def quorum(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Returns when it answers."""
        if self._process is not None:
            return
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._command, str(self._config)], stdout=log, stderr=subprocess.STDOUT
            )
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"ZooKeeper did not start: {self._log.read_text()[-2000:]}")
            time.sleep(0.05)

    def kill(self) -> None:
        """kill -9."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(60)

    def pause(self) -> None:
        """Connections stay open, and nothing is answered any more once this returns: a signal is
        only on its way when it has been sent, and threads go on until it arrives."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def wipe(self) -> None:
        self.kill()
        shutil.rmtree(self._data)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as client:
                client.sendall(b"srvr")
                return client.recv(100).startswith(b"Zookeeper version")
        except OSError:
            return False


class LossyNetwork:
    """Stands between a client and a server, and cuts connections when it is told to."""

    MULTI = 14
    """The operation of a request that is a transaction."""

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._is_down = False
        self._cut_at_transaction = ""
        self._comes_back = True
        self._was_cut = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def quorum(self) -> str:
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def cut_at_transaction(self, when: str, comes_back: bool) -> None:
        """With the next transaction the connection breaks, once: `before` or `after` it reaches the
        server. Then new connections are possible at once, or after `restore`."""
        self._was_cut.clear()
        self._comes_back, self._cut_at_transaction = comes_back, when

    def await_cut(self) -> None:
        """Returns when the connection has been cut at a transaction: who sent it may have given up
        before that."""
        assert self._was_cut.wait(60)

    def cut(self) -> None:
        with self._lock:
            self._is_down = True
            for connection in self._open:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def restore(self) -> None:
        self._is_down = False

    def close(self) -> None:
        self.cut()
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            if self._is_down:
                return
            with socket.create_connection(("127.0.0.1", self._server_port)) as server:
                with self._lock:
                    if self._is_down:
                        return
                    self._open |= {client, server}
                answers = threading.Thread(target=_pass_on, args=(server, client), daemon=True)
                answers.start()
                if self._pass_requests_on(client, server):
                    answers.join(60)
                with suppress(OSError):
                    server.shutdown(socket.SHUT_RDWR)
                answers.join(60)
                with self._lock:
                    self._open -= {client, server}

    def _pass_requests_on(self, client: socket.socket, server: socket.socket) -> bool:
        """Returns at the end; whether the server is to answer, though nobody hears it."""
        server.sendall(_read_frame(client))
        while frame := _read_frame(client):
            is_transaction = int.from_bytes(frame[8:12], "big") == self.MULTI
            if not (is_transaction and self._cut_at_transaction):
                server.sendall(frame)
                continue
            when, self._cut_at_transaction = self._cut_at_transaction, ""
            self._is_down = not self._comes_back
            client.shutdown(socket.SHUT_RDWR)
            if when == "after":
                server.sendall(frame)
            self._was_cut.set()
            return when == "after"
        return False


def _read_frame(connection: socket.socket) -> bytes:
    """A request with its length before it; nothing at the end."""
    head = _read(connection, 4)
    return head + _read(connection, int.from_bytes(head, "big")) if head else b""


def _read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            return b""
        data += more
    return data


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_RDWR)
