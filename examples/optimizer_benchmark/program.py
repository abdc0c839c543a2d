"""An optimizer that is another program: one JSON object a line on its standard input and output."""

import json
import subprocess


class Program:
    def __init__(self, command, space):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        self.asked = 0
        self._send(space)
        self._expect("ready")

    def ask(self):
        """(identifier, configuration)"""
        self.asked += 1
        self._send({"type": "ask", "id": self.asked})
        return self.asked, self._expect("config")["config"]

    def tell(self, identifier, config, result):
        self._send({"type": "tell", "id": identifier, "config": config, **result})

    def judge(self):
        """The program's pick, or None, and its estimate of the remaining gain beyond it: percentiles 5, 50 and 95 as shares
        of the pick's value, or None."""
        self._send({"type": "judge", "id": "judge"})
        said = self._expect("judgement")
        return (said["pick"] or {}).get("config"), said["remaining"]

    def close(self):
        try:
            self._send({"type": "end"})
            self.process.stdin.close()
            self.process.wait(timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()

    def _send(self, message):
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()

    def _expect(self, kind):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the optimizer ended, exit code {self.process.wait()}; expected {kind}")
        reply = json.loads(line)
        if reply.get("type") != kind:
            raise RuntimeError(f"expected {kind}, got {line.strip()}")
        return reply
