"""A headless Chromium, driven over the DevTools protocol on a pair of pipes: no driver to install, no port to guess."""

import json
import os
import select
import shutil
import subprocess
import time

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
)
PATIENCE_S = 120


def found():
    """Return the browser's path, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One page of one browser; `events` has everything that the page reported, in order."""

    def __init__(self, profile):
        commands, self._out = os.pipe()
        self._in, replies = os.pipe()

        def on_3_and_4():
            # Far from 3 and 4 first: either pipe may have been given one of those numbers.
            high = os.dup(commands), os.dup(replies)
            spare = [os.dup2(fd, 100 + i) for i, fd in enumerate(high)]
            os.dup2(spare[0], 3)
            os.dup2(spare[1], 4)

        self._process = subprocess.Popen(
            [found(), *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            preexec_fn=on_3_and_4,  # noqa: PLW1509 - no thread is running, and Chromium wants these very numbers
            pass_fds=(3, 4),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(replies)
        self._number, self._buffer, self.events, self._session = 0, b"", [], None
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method, **params):
        """Return the result of one command."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE_S
        while True:
            reply = self._receive(deadline)
            if reply.get("id") == self._number:
                assert "error" not in reply, reply["error"]
                return reply["result"]
            self.events.append(reply)

    def run(self, script):
        """Return what a script evaluates to, promises awaited."""
        answer = self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def open(self, url):
        """Load a page and wait until it is loaded."""
        self.send("Page.navigate", url=url)
        deadline = time.monotonic() + PATIENCE_S
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._receive(deadline))

    def told(self, method):
        """Return the parameters of every event of one kind."""
        return [event["params"] for event in self.events if event.get("method") == method]

    def close(self):
        """End the browser."""
        self._session = None
        try:
            self.send("Browser.close")
            self._process.wait(30)
        except (OSError, AssertionError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        os.close(self._out)
        os.close(self._in)

    def _receive(self, deadline):
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0, deadline - time.monotonic()))
            assert ready, f"the browser was silent for {PATIENCE_S} s"
            chunk = os.read(self._in, 1 << 20)
            assert chunk, "the browser ended"
            self._buffer += chunk
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)
