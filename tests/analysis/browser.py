"""A headless Chromium, driven over a pipe by its own protocol: no driver, no port, no dependency."""

import base64
import contextlib
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking",
    "--no-first-run", "--remote-debugging-pipe",
)  # fmt: skip
_WITHIN = 60.0  # seconds, for an answer on a machine that is busy


class Browser:
    """One page of Chromium. problems: what its console was told as warnings and errors, and uncaught exceptions."""

    def __init__(self, profile: Path):
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        # the browser reads descriptor 3 and writes 4
        script = f'exec "$@" 3<&{to_browser} 4>&{from_browser}'
        command = ["bash", "-c", script, "bash", str(CHROMIUM), *_FLAGS, f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(
            command, pass_fds=(to_browser, from_browser), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(to_browser)
        os.close(from_browser)
        self._numbers = itertools.count(1)
        self._unread = b""
        self._session: str | None = None
        self._events: list[dict[str, Any]] = []
        pages = [target for target in self.call("Target.getTargets")["targetInfos"] if target["type"] == "page"]
        attached = self.call("Target.attachToTarget", targetId=pages[0]["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    @property
    def problems(self) -> list[str]:
        """What went wrong on the page since it was opened."""
        found = []
        for event in self._events:
            facts = event.get("params", {})
            if event["method"] == "Runtime.exceptionThrown":
                found.append(json.dumps(facts["exceptionDetails"]))
            elif event["method"] == "Log.entryAdded" and facts["entry"]["level"] in ("warning", "error"):
                found.append(facts["entry"]["text"])
            elif event["method"] == "Runtime.consoleAPICalled" and facts["type"] in ("warning", "error", "assert"):
                found.append(json.dumps(facts["args"]))
        return found

    def open(self, path: Path, width: int, height: int = 900, dark: bool = False, scripts: bool = True) -> None:
        """Load a file at a width in px."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        self._events.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        self._wait_for("Page.loadEventFired")

    def run(self, expression: str) -> Any:
        """Return the value of a JavaScript expression; raises AssertionError where it fails."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def picture(self, path: Path) -> None:
        """Save what the window shows as png."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def print(self, path: Path) -> None:
        """Save the page as pdf."""
        options = {"preferCSSPageSize": True, "printBackground": True}
        path.write_bytes(base64.b64decode(self.call("Page.printToPDF", **options)["data"]))

    def close(self) -> None:
        """End the browser."""
        self._session = None
        with contextlib.suppress(OSError):
            self.call("Browser.close")
        self._process.wait(_WITHIN)
        os.close(self._in)
        os.close(self._out)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result; events that come before it are kept."""
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            found = self._read()
            if found.get("id") == number:
                assert "error" not in found, (method, found["error"])
                return found["result"]
            if "method" in found:
                self._events.append(found)

    def _wait_for(self, method: str) -> None:
        while not any(event["method"] == method for event in self._events):
            found = self._read()
            if "method" in found:
                self._events.append(found)

    def _read(self) -> dict[str, Any]:
        """Return the next message."""
        end = time.monotonic() + _WITHIN
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self._in], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                raise TimeoutError(f"Chromium has said nothing for {_WITHIN:.0f} s")
            part = os.read(self._in, 1 << 16)
            if not part:
                raise ConnectionError("Chromium has ended")
            self._unread += part
        message, _, self._unread = self._unread.partition(b"\0")
        return json.loads(message)
