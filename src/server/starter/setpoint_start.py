"""Starts processes of a Python engine that have already imported its modules.

    python setpoint_start.py hub FOLDER MODULE ...

The hub starts one waiting process for each environment, the first time that a process with this environment is needed. A
waiting process has been executed with exactly this environment, imports the modules, and then forks once for each start.
All of them share one session, because the kernel divides processors among sessions (sched(7), autogroup).
The engine's own processes ask for their children in the same way: a call of multiprocessing's `spawn` method becomes a
fork of the waiting process that has the child's environment. State that a library derives from its environment when it is
loaded (OpenMP, preloaded libraries, allocators) is therefore that of a plain start.

All of them listen on sockets in FOLDER. A request is one JSON line; descriptors may come with it. Each gets a JSON line:

    hub.sock      {"environment": {...}, "processors": [0, 1]}                 {"address": "..."}  or  {"error": "..."}
    KEY.sock      {"argv": [...], "log": "...", "directory": "...", ...}       {"pid": 1}, and at its end {"status": 9}
                  {"spawn": [3, 5], "descriptors": [1, 2, 7], ...}             likewise

The hub ends when its standard input ends, and the waiting processes then end as well. Written for Python 3.9 and later.
"""

import array
import atexit
import ctypes
import errno
import fcntl
import hashlib
import importlib
import json
import multiprocessing.popen_spawn_posix as popen_spawn_posix
import multiprocessing.util
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading

# The variable that names the launch which a process belongs to.
MARKER = "SETPOINT_LAUNCH"

# Variables that may differ from those of the waiting process, because nothing reads them at an import.
OWN_VARIABLES = (MARKER, "PYTHONPATH")

# Numbers of descriptors that no engine uses. The descriptors of a waiting process lie above, so that those of the started
# process keep the numbers that its parent has given them.
FIRST_DESCRIPTOR = 500

# More environments than these are started in the plain way, because each waiting process takes memory.
MAX_WAITING = 8

# The longest request in bytes, and the most descriptors of one.
MAX_REQUEST = 1 << 20
MAX_DESCRIPTORS = 250


def high(descriptor):
    """Moves a descriptor out of the range that the engine's processes use."""
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, FIRST_DESCRIPTOR)
    os.close(descriptor)
    return moved


def redirect(path, flags, number):
    opened = os.open(path, flags)
    os.dup2(opened, number)
    os.close(opened)


def high_socket(made):
    return socket.socket(fileno=high(made.detach()))


def receive(connection):
    """Returns the JSON of one line and the descriptors that came with it."""
    data, descriptors = b"", []
    while not data.endswith(b"\n"):
        room = socket.CMSG_SPACE(MAX_DESCRIPTORS * array.array("i").itemsize)
        part, ancillary, _, _ = connection.recvmsg(1 << 16, room)
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                found = array.array("i")
                found.frombytes(content[: len(content) - len(content) % found.itemsize])
                descriptors += [high(descriptor) for descriptor in found]
        data += part
        if not part or len(data) > MAX_REQUEST:
            raise EOFError("the line has no end")
    return json.loads(data), descriptors


def send(connection, message, descriptors=()):
    data = json.dumps(message).encode() + b"\n"
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    rest = data[connection.sendmsg([data], ancillary) :]
    # The other end may have closed by now, and even an empty message to a closed socket fails.
    if rest:
        connection.sendall(rest)


def connect(address):
    connection = high_socket(socket.socket(socket.AF_UNIX))
    connection.connect(address)
    return connection


def listen(address):
    listener = high_socket(socket.socket(socket.AF_UNIX))
    listener.bind(address)
    listener.listen()
    return listener


# --- the hub ---------------------------------------------------------------------------------------------------------


class Hub:
    def __init__(self, folder, modules):
        self.folder, self.modules = folder, modules
        self.waiting = {}

    def address(self, request):
        """Returns the address of the waiting process with this environment. Starts it if there is none."""
        environment, processors = request["environment"], request["processors"]
        fixed = {name: value for name, value in environment.items() if name not in OWN_VARIABLES}
        key = hashlib.sha256(json.dumps([sorted(fixed.items()), processors]).encode()).hexdigest()[:16]
        known = self.waiting.get(key)
        address = os.path.join(self.folder, key + ".sock")
        if known is not None and known.poll() is None:
            return address
        if known is None and len(self.waiting) >= MAX_WAITING:
            raise RuntimeError("%d environments have waiting processes already" % MAX_WAITING)
        if os.path.exists(address):
            os.unlink(address)
        # The hub's marker. Markers of started processes are written over it, and need no more bytes.
        own = {**environment, MARKER: os.environ.get(MARKER, "")}
        # All waiting processes have the same command line, so that those of one launch are recognised as one program.
        command = [sys.executable, os.path.abspath(__file__), "wait", self.folder, *self.modules]
        process = subprocess.Popen(
            command,
            env=own,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            preexec_fn=lambda: os.sched_setaffinity(0, processors),
        )
        self.waiting[key] = process
        # The other end of this pipe stays open until the hub ends.
        process.stdin.write(address.encode() + b"\n")
        process.stdin.flush()
        if process.stdout.readline() != b"ready\n":
            raise RuntimeError("the waiting process ended with exit code %s" % process.wait())
        return address

    def run(self):
        listener = listen(os.path.join(self.folder, "hub.sock"))
        print("ready", flush=True)
        while True:
            ready, _, _ = select.select([listener, 0], [], [])
            if 0 in ready and not os.read(0, 4096):
                # The tuner has ended in a way that left the folder.
                shutil.rmtree(self.folder, ignore_errors=True)
                return
            if listener in ready:
                connection, _ = listener.accept()
                with connection:
                    try:
                        request, _ = receive(connection)
                        answer = {"address": self.address(request)}
                    except Exception as error:
                        answer = {"error": "%s: %s" % (type(error).__name__, error)}
                    try:
                        send(connection, answer)
                    except OSError:
                        pass


# --- a waiting process -----------------------------------------------------------------------------------------------


class Waiting:
    def __init__(self, folder, address):
        self.folder = folder
        self.listener = listen(address)
        # Numbers of the processes that run, with the connections that wait for their ends.
        self.children = {}
        self.woken, self.wakes = (high(end) for end in os.pipe())
        os.set_blocking(self.wakes, False)

    def run(self):
        """Serves requests. Returns in each started process, with the function that it has to run. Returns None at the
        end of the hub."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.wakes, warn_on_full_buffer=False)
        alive = high(os.dup(0))
        while True:
            ready, _, _ = select.select([self.listener, self.woken, alive], [], [])
            if alive in ready:
                return None
            if self.woken in ready:
                os.read(self.woken, 4096)
                self.collect()
            if self.listener in ready:
                connection, _ = self.listener.accept()
                connection = high_socket(connection)
                job = self.start(connection)
                if job is not None:
                    os.close(alive)
                    return job

    def start(self, connection):
        """Forks for one request. Returns the job in the child."""
        descriptors = []
        try:
            request, descriptors = receive(connection)
            taken = occupied(request.get("descriptors", ()))
            if taken:
                raise RuntimeError("descriptors %s are in use" % taken)
            pid = os.fork()
            if pid == 0:
                return self.job(request, descriptors, connection)
            self.children[pid] = connection
            send(connection, {"pid": pid})
        except Exception as error:
            try:
                send(connection, {"error": "%s: %s" % (type(error).__name__, error)})
            except OSError:
                pass
            connection.close()
        for descriptor in descriptors:
            os.close(descriptor)
        return None

    def collect(self):
        """Collects ended processes and reports their ends."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            connection = self.children.pop(pid, None)
            if connection is not None:
                try:
                    send(connection, {"status": status})
                except OSError:
                    pass
                connection.close()

    def job(self, request, descriptors, connection):
        """Frees the child of everything that belongs to the waiting process, and returns the function that it runs."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for kept in (self.listener, connection, *self.children.values()):
            kept.close()
        for descriptor in (self.woken, self.wakes):
            os.close(descriptor)
        redirect(os.devnull, os.O_RDONLY, 0)
        replace_environment(request["environment"])
        mark(request["environment"].get(MARKER, ""))
        if "spawn" in request:
            for descriptor, number in zip(descriptors, request["descriptors"]):
                os.dup2(descriptor, number, inheritable=number <= 2)
                os.close(descriptor)
            return lambda: run_spawned(*request["spawn"])
        for number in (1, 2):
            redirect(request["log"], os.O_WRONLY | os.O_APPEND, number)
        os.chdir(request["directory"])
        return lambda: run_command(request["argv"])


def occupied(numbers):
    """Returns those descriptors above standard error that are open in this process."""
    taken = []
    for number in numbers:
        try:
            os.fstat(number)
            if number > 2:
                taken.append(number)
        except OSError as error:
            if error.errno != errno.EBADF:
                raise
    return taken


def replace_environment(wanted):
    """Changes only what differs: a library that sets the title of a process finds its memory by the first variable."""
    for name in [name for name in os.environ if name not in wanted]:
        del os.environ[name]
    for name, value in wanted.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


def mark(value):
    """Writes the marker over the one in the memory that /proc/PID/environ shows. It fits, or it is left out."""
    with open("/proc/self/environ", "rb") as file:
        content = file.read()
    entry = (MARKER + "=").encode()
    at = content.find(entry)
    if at != 0 and (at < 0 or content[at - 1] != 0):
        at = content.find(b"\0" + entry) + 1
    if at < 0 or not content[at:].startswith(entry):
        return
    room = content.index(b"\0", at) - at - len(entry)
    new = value.encode()
    with open("/proc/self/stat") as file:
        # Field 50 of proc(5), env_start. The name in field 2 may contain spaces.
        begin = int(file.read().rpartition(")")[2].split()[47])
    text = new.ljust(room, b"\0") if len(new) <= room else b"\0" * room
    ctypes.memmove(begin + at + len(entry), text, room)


def run_command(argv):
    """Runs a launcher script, or `python -m MODULE`, as the interpreter would."""
    path = os.environ.get("PYTHONPATH", "")
    sys.path[0:1] = [word for word in path.split(os.pathsep) if word]
    if argv[1:2] == ["-m"]:
        sys.argv = argv[2:]
        sys.path.insert(0, os.getcwd())
        runpy.run_module(argv[2], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(argv)
        sys.path.insert(0, os.path.dirname(os.path.realpath(argv[0])))
        runpy.run_path(argv[0], run_name="__main__")


def run_spawned(tracker, pipe):
    """Runs what multiprocessing's `spawn` method runs in its child."""
    from multiprocessing import spawn

    sys.argv = ["-c", "--multiprocessing-fork"]
    spawn.spawn_main(tracker_fd=tracker, pipe_handle=pipe)


def run_to_end(job):
    """Runs a job and ends the process as the interpreter would, except that memory is not freed: with thousands of
    imported modules, that takes seconds. multiprocessing's `fork` method ends its children in the same way."""
    code, is_interrupted = 0, False
    try:
        job()
    except SystemExit as ended:
        code = ended.code
        if code is None:
            code = 0
        elif not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    except BaseException as error:
        code, is_interrupted = 1, isinstance(error, KeyboardInterrupt)
        sys.excepthook(*sys.exc_info())
    # The order of Py_FinalizeEx: threads, exit functions, streams.
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):
            pass
    if is_interrupted:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code & 0xFF)


# --- in the engine's processes ---------------------------------------------------------------------------------------


class Children:
    """Routes multiprocessing's spawned children to waiting processes."""

    def __init__(self, folder):
        self.hub = os.path.join(folder, "hub.sock")
        self.plain_spawn = multiprocessing.util.spawnv_passfds
        self.plain_poll = popen_spawn_posix.Popen.poll
        # Connections that report the ends of children, by their numbers.
        self.connections = {}
        self.owner = os.getpid()
        multiprocessing.util.spawnv_passfds = self.spawn
        children = self
        popen_spawn_posix.Popen.poll = lambda popen, flag=os.WNOHANG: children.poll(popen, flag)

    def spawn(self, path, command, descriptors):
        """Like `multiprocessing.util.spawnv_passfds`, which it replaces."""
        numbers = spawn_numbers(command)
        if numbers is None:
            return self.plain_spawn(path, command, descriptors)
        try:
            return self.fork(numbers, descriptors)
        except Exception as error:
            print("setpoint: a plain start of a child: %s: %s" % (type(error).__name__, error), file=sys.stderr)
            return self.plain_spawn(path, command, descriptors)

    def fork(self, numbers, descriptors):
        environment = dict(os.environ)
        with connect(self.hub) as hub:
            send(hub, {"environment": environment, "processors": sorted(os.sched_getaffinity(0))})
            answer, _ = receive(hub)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        passed = [1, 2, *sorted(set(map(int, descriptors)))]
        connection = connect(answer["address"])
        send(connection, {"spawn": numbers, "descriptors": passed, "environment": environment}, passed)
        started, _ = receive(connection)
        if "error" in started:
            connection.close()
            raise RuntimeError(started["error"])
        if self.owner != os.getpid():
            self.owner, self.connections = os.getpid(), {}
        self.connections[started["pid"]] = connection
        return started["pid"]

    def poll(self, popen, flag):
        connection = self.connections.get(popen.pid) if self.owner == os.getpid() else None
        if connection is None or popen.returncode is not None:
            return self.plain_poll(popen, flag)
        if flag == os.WNOHANG and not select.select([connection], [], [], 0)[0]:
            return None
        try:
            status = receive(connection)[0]["status"]
            popen.returncode = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        except (EOFError, OSError):
            # Its waiting process is gone, so that nobody knows the exit code.
            popen.returncode = 255
        connection.close()
        del self.connections[popen.pid]
        return popen.returncode


def spawn_numbers(command):
    """Returns the numbers in the command line of a spawned child: those of the tracker and of the pipe. Returns None for
    another command."""
    text = command[-2] if len(command) > 2 else ""
    begin = "from multiprocessing.spawn import spawn_main; spawn_main("
    if isinstance(text, bytes):
        text = text.decode()
    if command[-1] not in ("--multiprocessing-fork", b"--multiprocessing-fork") or not text.startswith(begin):
        return None
    values = dict(word.strip().split("=") for word in text[len(begin) :].rstrip(")").split(","))
    return [int(values["tracker_fd"]), int(values["pipe_handle"])]


def main():
    role, folder = sys.argv[1:3]
    if role == "hub":
        Hub(folder, sys.argv[3:]).run()
        return None
    modules = sys.argv[3:]
    address = sys.stdin.readline().rstrip("\n")
    ready = high(os.dup(1))
    # The engine's messages at an import belong to no launch.
    redirect(os.devnull, os.O_WRONLY, 1)
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError:
            # Another release has it elsewhere. The process then imports it itself.
            pass
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        raise SystemExit("an import has initialized CUDA, and a fork cannot use it")
    Children(folder)
    waiting = Waiting(folder, address)
    os.write(ready, b"ready\n")
    os.close(ready)
    return waiting.run()


if __name__ == "__main__":
    job = main()
    if job is not None:
        run_to_end(job)
