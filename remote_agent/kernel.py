"""The kernel: runs the cells of a session, one after another, in one ``__main__``.

Executed in an interpreter of its own. Its channel to the supervisor lies far above the standard
descriptors; 0 is /dev/null, 1 and 2 are the pipes of the running cell. A cell may replace any module,
builtin, stream or descriptor, so what the kernel needs it takes before the first cell, and checks
what it shares with cells each time one begins.

Started in one of two ways: with ``CHANNEL`` (serve cells until the channel ends) or with ``ONCE``
(run one cell as a standalone script, its result in a file); or by `alone_cell.py`.
"""

from __future__ import annotations

import _ast
import _socket
import atexit
import builtins
import fcntl
import marshal
import sys
import types

from cell_sources import ALLOW_TOP_LEVEL_AWAIT, COMPILE_ONLY_AST, Sources, make_folder
from surroundings import Builtins, Signals, Streams, os, unbuffer_c_output

TYPE_CHECKING = False  # `typing` costs every start of a kernel some milliseconds
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Tuple

    Message = Tuple[bytes, List[bytes]]

_settrace, _setprofile = sys.settrace, sys.setprofile
_get_depth, _set_depth = sys.getrecursionlimit, sys.setrecursionlimit

#: Where the channel is moved: above what `os.closerange(3, 256)` and its like close.
CHANNEL_FD = 900
#: Holds the value of a cell's last expression for a moment; no identifier, so no name of a cell.
LAST_VALUE = "the value of the last line"
IS_COROUTINE = 0x80
KERNEL_FILE = "<talaria kernel>"
TOOLS_MARK = b"\n# --- tools ---\n"


def pack(kind: bytes, *fields: bytes) -> bytes:
    """A message, as `wire.pack` makes it."""
    body = kind + b"".join(len(field).to_bytes(4, "big") + field for field in fields)
    return len(body).to_bytes(4, "big") + body


def unpack(body: bytes) -> Message:
    """The kind and fields of a message without its length."""
    fields = []
    at = 1
    while at < len(body):
        size = int.from_bytes(body[at : at + 4], "big")
        fields.append(body[at + 4 : at + 4 + size])
        at += 4 + size
    return body[:1], fields


def _lift(fd: int) -> int:
    """Moves a descriptor above those that scripts close."""
    for lowest in (CHANNEL_FD, 64, 3):  # as high as the limit of descriptors lets it
        try:
            moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, lowest)
            break
        except (OSError, ValueError):
            if lowest == 3:
                raise
    os.close(fd)
    return moved


class Channel:
    """The stream socket to the supervisor, and the pipe that bears witness of what was begun."""

    def __init__(self, fd: int, witness: int) -> None:
        self._socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, _lift(fd))
        self._witness = _lift(witness)
        self._buffer = b""
        self._fds: List[int] = []

    def receive(self) -> Optional[Tuple[bytes, List[bytes], List[int]]]:
        """The next message and the descriptors that came with it; None at the end."""
        while len(self._buffer) < 4:
            if not self._fill():
                return None
        size = 4 + int.from_bytes(self._buffer[:4], "big")
        if len(self._buffer) < size:
            parts = [self._buffer]
            have = len(self._buffer)
            while have < size:
                self._buffer = b""
                if not self._fill():
                    return None
                parts.append(self._buffer)
                have += len(self._buffer)
            self._buffer = b"".join(parts)
        body, self._buffer = self._buffer[4:size], self._buffer[size:]
        fds, self._fds = self._fds, []
        return unpack(body) + (fds,)

    def _fill(self) -> bool:
        data, ancillary, _, _ = self._socket.recvmsg(1 << 16, 64)
        for level, kind, content in ancillary:
            if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS:
                for at in range(0, len(content) - 3, 4):
                    self._fds.append(int.from_bytes(content[at : at + 4], sys.byteorder))
        self._buffer += data
        return bool(data)

    def begin(self) -> None:
        """Bears witness that a cell runs from here on: it must not be run again elsewhere."""
        if os.write(self._witness, b".") != 1:
            raise OSError("the witness was not heard")

    def send(self, kind: bytes, *fields: bytes) -> None:
        """Sends one message."""
        self._socket.sendall(pack(kind, *fields))


class Result:
    """How a cell ended, as the broker is told."""

    def __init__(self) -> None:
        self.kind = b"ok"
        self.code = 0
        self.error = ""
        self.missing = ""
        self.unprinted = False

    def fields(self) -> List[bytes]:
        """As fields of a message."""
        return [
            self.kind,
            b"%d" % self.code,
            self.error.encode("utf-8", "replace"),
            self.missing.encode("utf-8", "replace"),
            b"1" if self.unprinted else b"",
        ]


class Kernel:
    """The one namespace and everything that is put right before each cell."""

    def __init__(self, boot: List[bytes], home: Optional[Callable[[bytes], bytes]] = None) -> None:
        folder, stub_source, stub_code, link, working = boot
        self._pid = os.getpid()
        self._folder = os.fsdecode(folder)
        self._library = self._folder + "/lib"
        self._link = dict(entry.split("=", 1) for entry in os.fsdecode(link).split("\0") if "=" in entry)
        self._working = os.fsdecode(working)
        self._streams = Streams()
        self._signals = Signals()
        self._builtins = Builtins()
        self._sources = Sources(self._folder + "/cells")
        self._loop: Any = None
        self._main = sys.modules["__main__"]
        self._prepare_main()
        self._stub_source = stub_source
        self._stub = types.ModuleType("hermes_tools")
        self._stub.__file__ = self._library + "/hermes_tools.py"
        code = marshal.loads(stub_code) if stub_code else compile(stub_source, self._stub.__file__, "exec", 0, True)
        sys.modules["hermes_tools"] = self._stub
        exec(code, self._stub.__dict__)
        if home is not None:
            self._stub.__dict__["_HOME"] = home
        self._view: Callable[[], Any] = self._stub.__dict__["_StdlibView"]
        self._sources.view = self._view
        hooks = {"linecache": self._sources.fill, "inspect": self._sources.find_classes}
        self._stub.__dict__["_install"](True, hooks)
        # Only now: the project may shadow whatever is not loaded yet.
        self._path_of_project()
        os.chdir(self._working)
        self._write_stub()
        self._stub_names = dict(self._stub.__dict__)
        self._finder: Any = sys.meta_path[0]
        self._modules = dict(sys.modules)
        self._paths = {name: list(getattr(sys, name)) for name in ("path", "meta_path", "path_hooks")}
        self._excepthook = sys.excepthook
        self._displayhook = sys.displayhook
        self._ask_user_modules()
        # What start-up code of the user's printed goes where fd 1 and 2 lead now, not into a cell.
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception:
                pass  # it may have closed or replaced them

    def _prepare_main(self) -> None:
        # The line that started us left its own names there.
        for name in list(self._main.__dict__):
            if not (name.startswith("__") and name.endswith("__")):
                del self._main.__dict__[name]

    def _path_of_project(self) -> None:
        # The interpreter started without PYTHONPATH: whatever lies there has not run before us.
        entries = [entry for entry in self._link.pop("PYTHONPATH", "").split(os.pathsep) if entry]
        self._python_path = os.pathsep.join([self._library] + entries)
        os.environ["PYTHONPATH"] = self._python_path
        rest = [entry for entry in sys.path if entry not in ("", self._library)]
        sys.path[:] = [self._library, ""] + [entry for entry in entries if entry not in rest] + rest
        self._had_python_path = bool(entries)

    def _ask_user_modules(self) -> None:
        if self._had_python_path and "sitecustomize" not in sys.modules:
            try:
                __import__("sitecustomize")
            except BaseException:
                pass

    def _write_stub(self) -> None:
        """The copy on disk, for processes that a cell starts."""
        path = self._library + "/hermes_tools.py"
        aside = path + ".%d" % self._pid
        try:
            make_folder(self._library)
            fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with open(fd, "wb") as file:
                file.write(self._stub_source)
            os.rename(aside, path)
        except OSError:
            pass  # this process has it in memory

    def run(self, message: List[bytes]) -> Result:
        """Runs one cell."""
        number, name, arguments, kind, stub_source, source = message
        result = Result()
        path = self._begin(int(number), os.fsdecode(name), source, stub_source)
        sys.argv = [path] + [os.fsdecode(argument) for argument in arguments.split(b"\0")[1:]]
        self._main.__dict__["__file__"] = path
        self._main.__dict__["__name__"] = "__main__"
        # What a warning was said once for is a place in a cell, and this is another cell.
        self._main.__dict__.pop("__warningregistry__", None)
        try:
            text = source if kind == b"bytes" else source.decode("utf-8", "replace").lstrip("\ufeff")
            self._execute(text, path, result)
        except SystemExit as leave:
            try:
                self._left(leave, result)
            except BaseException as error:  # a subclass may answer with anything
                self._raised(error, result)
        except BaseException as error:
            self._raised(error, result)
        if os.getpid() != self._pid:
            # A child that the cell forked and that came to the end of the script, as scripts do.
            self._streams.flush()
            os._exit(result.code & 0xFF)
        self._end()
        return result

    def tidy(self) -> None:
        """Puts right what a cell has changed. Done when it has ended: the next one is not to wait for it."""
        self._signals.restore()
        self._streams.restore()
        for key, module in self._modules.items():
            if key not in sys.modules:
                sys.modules[key] = module
        sys.modules["__main__"] = self._main
        self._main.__dict__["__builtins__"] = builtins
        self._restore_import()
        if sys.modules.get("faulthandler") is not None:
            try:
                sys.modules["faulthandler"].cancel_dump_traceback_later()
            except BaseException:  # a cell may have put anything in its place
                pass
        _settrace(None)
        _setprofile(None)
        sys.excepthook = self._excepthook
        sys.displayhook = self._displayhook
        names = self._stub.__dict__
        for name_there, value in self._stub_names.items():
            if name_there not in names or (callable(value) and names[name_there] is not value):
                names[name_there] = value
        if self._library not in sys.path:
            sys.path.insert(0, self._library)
        os.environ.update(self._link)
        if self._library not in os.environ.get("PYTHONPATH", "").split(os.pathsep):
            os.environ["PYTHONPATH"] = self._python_path

    def _begin(self, number: int, name: str, source: bytes, stub_source: bytes) -> str:
        # What may have changed since the last cell ended: by its threads, or from outside.
        self._streams.restore()
        self._restore_folder()
        sys.modules["hermes_tools"] = self._stub
        if stub_source:
            self._replace_tools(stub_source)
        try:
            os.lstat(self._library + "/hermes_tools.py")
        except OSError:
            self._write_stub()
        os.environ["HERMES_RPC_CELL"] = str(number)
        self._stub.__dict__["_enter_cell"](number)
        return self._sources.add(name, source)

    def _restore_import(self) -> None:
        for name, initial in self._paths.items():
            if not isinstance(getattr(sys, name, None), list):
                setattr(sys, name, list(initial))
        if self._finder not in sys.meta_path:
            sys.meta_path.insert(0, self._finder)
        sys.meta_path += [finder for finder in _IMPORT_BASICS if finder not in sys.meta_path]
        hooks = [hook for hook in self._paths["path_hooks"] if hook not in sys.path_hooks]
        if hooks:
            sys.path_hooks += hooks
            sys.path_importer_cache.clear()  # without them it learnt that there is nothing to be found

    def _restore_folder(self) -> None:
        try:
            os.getcwd()
        except OSError:
            for folder in (self._working, "/"):
                try:
                    os.chdir(folder)
                    return
                except OSError:
                    pass

    def _replace_tools(self, stub_source: bytes) -> None:
        names = self._stub.__dict__
        for name in names.get("_GENERATED", ()):
            names.pop(name, None)
        self._stub_source = stub_source
        runtime, mark, tools = stub_source.partition(TOOLS_MARK)
        # Blank lines in front keep the line numbers of the file.
        lines = b"\n" * (runtime + mark).count(b"\n")
        exec(compile(lines + tools, self._stub.__file__ or "", "exec", 0, True), names)
        self._stub_names = dict(names)
        self._write_stub()

    def _end(self) -> None:
        self._streams.flush()
        self._stub.__dict__["_enter_cell"](0)

    def _execute(self, source: Any, path: str, result: Result) -> None:
        flags = ALLOW_TOP_LEVEL_AWAIT
        tree: Any = compile(source, path, "exec", flags | COMPILE_ONLY_AST, True)
        last = tree.body[-1] if tree.body else None
        if isinstance(last, _ast.Expr):
            place = {name: getattr(last, name) for name in last._attributes}
            name = _ast.Name(id=LAST_VALUE, ctx=_ast.Store(), **place)
            tree.body[-1] = _ast.Assign(targets=[name], value=last.value, type_comment=None, **place)
        namespace = self._main.__dict__
        try:
            self._evaluate(compile(tree, path, "exec", flags, True), namespace)
        finally:
            self._builtins.repair()
            result.unprinted = namespace.pop(LAST_VALUE, None) is not None

    def _evaluate(self, code: types.CodeType, namespace: Dict[str, Any]) -> None:
        if not code.co_flags & IS_COROUTINE:
            eval(code, namespace)
            return
        with self._view():
            import asyncio  # which imports more as it goes

            if self._loop is None or self._loop.is_closed():
                self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(eval(code, namespace))

    def _left(self, leave: SystemExit, result: Result) -> None:
        code = leave.code
        result.kind = b"exit"
        if code is None or code is False:
            result.code = 0
        elif isinstance(code, int):
            result.code = max(-(2**31), min(2**31 - 1, int(code)))
        else:
            result.code = 1
            try:
                result.error = str(code)
            except BaseException:
                result.error = "SystemExit"
            self.say(result.error + "\n")

    def _raised(self, error: BaseException, result: Result) -> None:
        result.kind = b"raised"
        result.code = 1
        depth = _get_depth()
        _set_depth(max(depth, 1000))  # a cell may have left too little even to show what it raised
        try:
            if isinstance(error, (ImportError, NameError)):
                result.missing = str(getattr(error, "name", "") or "")
            elif isinstance(error, SyntaxError) and (error.filename or "") in self._sources:
                result.missing = str(error.lineno or "")
            with self._view():
                import traceback

                text, result.error = self._format(error, traceback)  # which imports more
        except BaseException:  # `traceback` itself, or the exception's own `__str__`, is broken
            result.error = type(error).__name__
            text = "Traceback (most recent call last):\n  (it cannot be shown)\n" + result.error + "\n"
        finally:
            _set_depth(depth)
        self.say(text)

    def _format(self, error: BaseException, traceback: Any) -> Tuple[str, str]:
        seen = set()
        queue: List[Optional[BaseException]] = [error]
        while queue:
            one = queue.pop()
            if one is None or id(one) in seen:
                continue
            seen.add(id(one))
            one.__traceback__ = self._without_ours(one.__traceback__)
            queue += [one.__cause__, one.__context__]
            queue += getattr(one, "exceptions", ()) if isinstance(getattr(one, "exceptions", None), tuple) else ()
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        summary = ""
        for line in traceback.format_exception_only(type(error), error):
            if not line.startswith(" "):
                summary = line.strip()
                if summary.split(":")[0].endswith(type(error).__name__):
                    break
        return text, summary

    def _without_ours(self, trace: Optional[types.TracebackType]) -> Optional[types.TracebackType]:
        frames: List[types.TracebackType] = []
        led_by_us = False
        while trace is not None:
            file = trace.tb_frame.f_code.co_filename
            if file in (KERNEL_FILE, self._stub.__file__):
                led_by_us = led_by_us or not frames
            else:
                frames.append(trace)
            trace = trace.tb_next
        if led_by_us:
            # Between us and the cell stands the loop that we run it in.
            while frames and frames[0].tb_frame.f_code.co_filename not in self._sources:
                del frames[0]
        kept: Optional[types.TracebackType] = None
        for frame in reversed(frames):
            kept = types.TracebackType(kept, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
        return kept

    def say(self, text: str) -> None:
        """Writes to stderr, if anything can."""
        for stream in (sys.stderr, self._streams.error()):
            try:
                if stream is not None:
                    stream.write(text)
                    stream.flush()
                    return
            except BaseException:
                pass


_IMPORT_BASICS = tuple(sys.meta_path)


def settle() -> None:
    """Gives way to the broker and its supervisor, and is the first to go when memory runs out."""
    try:
        os.nice(5)
    except OSError:
        pass
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("500")
    except OSError:
        pass


def leave(code: int) -> None:
    """Ends the process as an interpreter does, but does not wait for threads that still run."""
    try:
        run: Callable[[], None] = atexit._run_exitfuncs  # type: ignore[attr-defined]
        run()
    finally:
        os._exit(code)


def rest() -> None:
    """Between cells the standard descriptors lead nowhere.

    The pipes of the cell close here, while its record is on its way: closed when the next one begins,
    they would wake the supervisor in the middle of it.
    """
    try:
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return  # a cell took all descriptors
    for number in (0, 1, 2):
        if number != null:
            os.dup2(null, number)
    if null > 2:
        os.close(null)
    else:
        os.set_inheritable(null, True)


def settle_down(kernel: Kernel) -> None:
    """Between cells; what a cell left to interrupt it (a timer, a signal handler) goes first."""
    for _ in range(10):
        try:
            kernel.tidy()
            rest()
            return
        except BaseException:
            pass  # raised by such a handler


def serve(fd: int, witness: int) -> None:
    """Runs the cells that come over the channel, until it ends."""
    channel = Channel(fd, witness)
    settle()
    first = channel.receive()
    if first is None:
        return
    unbuffer_c_output()
    kernel = Kernel(first[1])
    version = "%d.%d.%d" % sys.version_info[:3]
    channel.send(b"R", version.encode(), os.fsencode(sys.executable))
    while True:
        try:
            message = channel.receive()
        except KeyboardInterrupt:
            continue
        if message is None:
            break
        _, fields, pipes = message
        try:
            # They may have arrived on the very numbers that they are to take.
            lifted = [fcntl.fcntl(pipe, fcntl.F_DUPFD_CLOEXEC, 3) for pipe in pipes]
            if len(lifted) != 2:
                raise OSError("the pipes of the cell did not arrive")
            channel.begin()
        except OSError:
            # An earlier cell closed our descriptors, or took all there are: a fresh kernel runs this one.
            os._exit(1)
        for number, pipe in zip((1, 2), lifted):
            os.dup2(pipe, number)
        for pipe in lifted + [pipe for pipe in pipes if pipe > 2]:
            os.close(pipe)
        result = kernel.run(fields)
        try:
            channel.send(b"D", fields[0], *result.fields())
        except OSError:
            kernel.say("the script closed the descriptor that its kernel is served through; the kernel ends\n")
            os._exit(1)
        settle_down(kernel)
    leave(0)


def once(base: str) -> None:
    """Runs one cell as a standalone script; its result goes to a file."""
    settle()
    with open(base + ".cell", "rb") as file:
        data = file.read()
    size = int.from_bytes(data[:4], "big")
    boot = unpack(data[4 : 4 + size])[1]
    cell = unpack(data[8 + size :])[1]
    unbuffer_c_output()
    result = Kernel(boot).run(cell)
    make_folder(base.rpartition("/")[0])
    with open(base + ".aside", "wb") as out:
        out.write(pack(b"D", cell[0], *result.fields()))
    os.rename(base + ".aside", base + ".result")
    leave(result.code & 0xFF)


if "CHANNEL" in globals() or "ONCE" in globals():
    for module in ("kernel", "cell_sources", "surroundings"):
        del sys.modules[module]  # a project may have modules of these names
if "CHANNEL" in globals():
    serve(globals()["CHANNEL"], globals()["WITNESS"])
elif "ONCE" in globals():
    once(globals()["ONCE"])
