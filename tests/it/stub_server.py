"""A server with OpenAI's completions, unlike any engine that setpoint knows. Its speed is its setting `workers`."""

import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

settings = {name.lower(): value for name, value in os.environ.items() if name in ("WORKERS", "FAST")}
words = sys.argv[1:]
for index, word in enumerate(words):
    name, _, value = word.lstrip("-").partition("=")
    settings[name] = value or (words[index + 1] if index + 1 < len(words) else "")
workers = int(settings.get("workers") or settings.get("w") or 1)
if workers == 7:
    sys.exit("cannot allocate 7 workers")
with_models = "models" in settings


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, body, kind="application/json"):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if self.path == "/up":
            self.answer(200, b"{}")
        elif self.path == "/numbers":
            self.answer(200, b"stub_active 1\nstub_tokens 5\n", "text/plain")
        elif self.path == "/v1/models" and with_models:
            self.answer(200, b'{"data": [{"id": "whatever"}]}')
        else:
            self.answer(404, b"")

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert isinstance(asked["prompt"], (str, list)), asked
        tokens = asked["max_tokens"]
        if not asked.get("stream"):
            self.answer(200, b'{"choices": [{"text": "a"}]}')
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for number in range(tokens):
            time.sleep(0.02 / workers)
            reason = "length" if number == tokens - 1 else None
            self.event({"choices": [{"index": 0, "text": " a", "finish_reason": reason}]})
        usage = {"prompt_tokens": 4, "completion_tokens": tokens, "total_tokens": 4 + tokens}
        self.event({"choices": [], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def event(self, data):
        self.wfile.write(b"data: " + json.dumps(data).encode() + b"\n\n")
        self.wfile.flush()


server = ThreadingHTTPServer(("127.0.0.1", int(settings["port"])), Handler)
print("stub is up with", workers, "workers", flush=True)
server.serve_forever()
