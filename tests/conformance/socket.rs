//! What a hostile or broken process may send to the socket of a session.

use serde_json::json;
use talaria_broker::socket_rpc::Transport;

use crate::rig::{Rig, TestSession};
use crate::tool_host::TestTools;
use crate::{Case, cases};

pub(crate) const CASES: &[Case] = cases![
    whatever_is_sent_is_answered,
    a_call_without_the_token_is_refused,
    callers_that_stand_still_hold_up_nobody,
    connections_that_break_do_no_harm,
    many_connections_are_served,
    a_broker_out_of_descriptors_answers_all_the_same,
    the_socket_is_private,
    a_call_to_a_session_that_is_gone_raises,
];

/// Puts a function `dial()` and frames' `send` and `receive` into the kernel.
const WIRE: &str = r#"
import json, os, socket, struct
import hermes_tools
from hermes_tools import echo, _current_cell
TOKEN = hermes_tools._TOKEN
def dial():
    address = os.environ["HERMES_RPC_SOCKET"]
    if address.startswith("tcp:"):
        host, _, port = address[4:].rpartition(":")
        return socket.create_connection((host, int(port)), timeout=60)
    plug = socket.socket(socket.AF_UNIX); plug.settimeout(60); plug.connect(address)
    return plug
def frame(body):
    return struct.pack(">I", len(body)) + body
def call(token, name="echo", arguments={"value": 1}, cell=None):
    return frame(json.dumps([token, _current_cell() if cell is None else cell, name, arguments]).encode())
def receive(plug):
    data = b""
    while len(data) < 4 or len(data) < 4 + struct.unpack(">I", data[:4])[0]:
        more = plug.recv(65536)
        if not more: return "closed"
        data += more
    return json.loads(data[4:])
def exchange(raw):
    with dial() as plug:
        plug.sendall(raw)
        return receive(plug)
"#;

fn wired(rig: &Rig) -> Vec<(TestSession, std::sync::Arc<TestTools>)> {
    let open = |transport| {
        let tools = TestTools::new();
        let session = rig.session_with(|options| {
            options.host = tools.clone();
            options.rpc = transport;
        });
        session.ok(WIRE);
        (session, tools)
    };
    [Transport::Unix, Transport::Tcp].map(open).into()
}

fn whatever_is_sent_is_answered(rig: &Rig) {
    for (session, tools) in wired(rig) {
        let code = r#"
deep = b"[" * 100_000 + b"]" * 100_000
good = json.dumps([TOKEN, _current_cell(), "echo", {"value": 1}]).encode()
bodies = [
    b"", b"x", b"null", b"{}", b"[]", b'"text"', b"[1, 2, 3, 4]", good[:-1], good + b"x", good + b"\n]", b"\xff\xfe", b"\x00" * 100, b"GET / HTTP/1.1\r\n\r\n",
    deep, good.replace(b'{"value": 1}', b'{"value": ' + deep + b"}"), good.replace(b'{"value": 1}', b"[]"), good.replace(b'"echo"', b"5"),
    good.replace(b'{"value": 1}', b'{"value": 1e999}'), good.replace(b'{"value": 1}', b'{"value": "\\ud800"}'), good.replace(b'{"value": 1}', b'{"value": "\xff"}'),
    good.replace(b'{"value": 1}', b'{"value": NaN}'), json.dumps([TOKEN, -1, "echo", {}]).encode(), json.dumps([TOKEN, 2**64, "echo", {}]).encode(),
    json.dumps([TOKEN, 1.5, "echo", {}]).encode(), json.dumps([TOKEN, None, "echo", {}]).encode(), json.dumps([TOKEN, _current_cell(), "../../x\n", {}]).encode(),
    json.dumps([TOKEN, _current_cell(), "echo", {}, 1]).encode(), b"x" * 3_000_000, b"[" + b" " * 3_000_000 + b"]",
]
for body in bodies:
    answer = exchange(frame(body))
    if not isinstance(answer, dict) or list(answer) != ["error"] or len(answer["error"]) > 2000: print(ascii(body[:60]), ascii(str(answer))[:200])
# Many on one connection; a refusal does not close it.
with dial() as plug:
    for body in bodies[:13]:
        plug.sendall(frame(body)); receive(plug)
    plug.sendall(call(TOKEN)); print(receive(plug))
# Over the limit of a frame: the refusal arrives, and names it.
size = 400 << 20
with dial() as plug:
    plug.sendall(struct.pack(">I", size))
    for _ in range(size >> 20): plug.sendall(b"x" * (1 << 20))
    print("64 MiB" in receive(plug)["error"])
    plug.sendall(call(TOKEN)); print(receive(plug))
with dial() as plug:
    plug.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"); plug.shutdown(socket.SHUT_WR)
    print("error" in receive(plug))
# Two at once on one connection.
with dial() as plug:
    plug.sendall(call(TOKEN) + call(TOKEN)); print("error" in receive(plug))
print(echo("on"))
"#;
        let printed = session.ok(code);
        assert_eq!(
            printed,
            "{'value': 1}\nTrue\n{'value': 1}\nTrue\nTrue\n{'value': 'on'}\n"
        );
        assert_eq!(tools.calls("echo").len(), 3);
    }
}

fn a_call_without_the_token_is_refused(rig: &Rig) {
    for (session, tools) in wired(rig) {
        let code = r#"
for token in ("", "x", TOKEN[:-1], TOKEN + "x", TOKEN.upper() + "!", "\x00" * len(TOKEN), TOKEN[:-1] + ("0" if TOKEN[-1] != "0" else "1")):
    answer = exchange(call(token))
    print("token" in answer["error"], TOKEN in answer["error"], end=" ")
for token in (None, 5, [TOKEN], {"": TOKEN}):
    print(list(exchange(call(token))), end=" ")
print(exchange(call(TOKEN)))
"#;
        let expected = format!("{}{}{{'value': 1}}\n", "True False ".repeat(7), "['error'] ".repeat(4));
        assert_eq!(session.ok(code), expected);
        assert_eq!(tools.calls("echo").len(), 1);
        // Another session's token is none here.
        let (other, _) = wired(rig).remove(0);
        let token = other.ok("print(TOKEN, end='')");
        let code = format!("print('token' in exchange(call({}))['error'])", json!(token));
        assert_eq!(session.ok(&code), "True\n");
    }
}

fn callers_that_stand_still_hold_up_nobody(rig: &Rig) {
    let (session, _) = wired(rig).remove(0);
    let code = r#"
held = [dial() for _ in range(6)]
held[1].sendall(b"\x00")
held[2].sendall(struct.pack(">I", 100))
held[3].sendall(struct.pack(">I", 5_000_000))
held[4].sendall(struct.pack(">I", 100_000_000) + b"x" * 1_000_000)
held[5].sendall(struct.pack(">I", 4_000_000_000) + b"x")
print(echo("small"), len(echo("x" * 3_000_000)["value"]))
# It comes to itself again, and is served.
body = json.dumps([TOKEN, _current_cell(), "echo", {"value": "y" * 3_000_000}]).encode()
late = dial()
late.sendall(struct.pack(">I", len(body)) + body[:1_000_000])
print(len(echo("x" * 3_000_000)["value"]))
late.sendall(body[1_000_000:])
print(receive(late) == {"value": "y" * 3_000_000})
"#;
    assert_eq!(session.ok(code), "{'value': 'small'} 3000000\n3000000\nTrue\n");
}

fn connections_that_break_do_no_harm(rig: &Rig) {
    for (session, tools) in wired(rig) {
        let code = r#"
whole = call(TOKEN, arguments={"value": "x" * 50_000})
for size in (0, 1, 3, 4, 5, 1000, len(whole) - 1):
    for linger in (False, True):
        plug = dial(); plug.sendall(whole[:size])
        if linger: plug.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        plug.close()
# Gone before the answer is read.
plug = dial(); plug.sendall(call(TOKEN, "slow", {"seconds": 0.05, "value": "z" * 5_000_000})); plug.close()
plug = dial(); plug.sendall(call(TOKEN, arguments={"value": "z" * 5_000_000})); plug.recv(1); plug.close()
print(echo("on"))
"#;
        assert_eq!(session.ok(code), "{'value': 'on'}\n");
        // Nothing that was not whole has run.
        assert!(
            tools
                .calls("echo")
                .iter()
                .all(|call| call["value"].as_str().unwrap().len() != 50_000)
        );
    }
}

/// Each call is answered, by the tool or by a word about what is missing; none waits for the timeout.
fn a_broker_out_of_descriptors_answers_all_the_same(rig: &Rig) {
    rig.file(
        "calls.py",
        "import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
from concurrent.futures import ThreadPoolExecutor
from hermes_tools import terminal
with ThreadPoolExecutor(24) as pool:
    answers = list(pool.map(lambda i: terminal('sleep 0.3'), range(24)))
done = [a for a in answers if a.get('exit_code') == 0]
refused = [a for a in answers if 'descriptor' in str(a.get('error')) or 'open files' in str(a.get('error'))]
print(len(done) + len(refused), bool(done), bool(refused))",
    );
    let output = rig
        .shell("ulimit -S -n 40; exec \"$TALARIA\" run --timeout 20s calls.py")
        .run();
    assert_eq!(output.stdout, "24 True True\n", "{output:?}");
}

fn many_connections_are_served(rig: &Rig) {
    for (session, _) in wired(rig) {
        let code = "
plugs = [dial() for _ in range(300)]
for number, plug in enumerate(plugs[:40]): plug.sendall(call(TOKEN, arguments={'value': number}))
print([receive(plug)['value'] for plug in plugs[:40]] == list(range(40)))
for plug in plugs: plug.close()
print(echo('on'))
";
        assert_eq!(session.ok(code), "True\n{'value': 'on'}\n");
    }
}

fn the_socket_is_private(rig: &Rig) {
    let session = rig.session();
    let code = "
import os, stat
path = os.environ['HERMES_RPC_SOCKET']
print(oct(stat.S_IMODE(os.stat(path).st_mode)), oct(stat.S_IMODE(os.stat(os.path.dirname(path)).st_mode)), stat.S_ISSOCK(os.stat(path).st_mode))
import hermes_tools
print(oct(stat.S_IMODE(os.stat(hermes_tools.__file__).st_mode)), any(hermes_tools._TOKEN in value for value in os.environ.values()))
";
    assert_eq!(session.ok(code), "0o600 0o700 True\n0o600 False\n");
    let session = rig.session_with(|options| options.rpc = Transport::Tcp);
    assert_eq!(
        session.ok("import os; print(os.environ['HERMES_RPC_SOCKET'].split(':')[:2])"),
        "['tcp', '127.0.0.1']\n"
    );
}

fn a_call_to_a_session_that_is_gone_raises(rig: &Rig) {
    let session = rig.session();
    let code = "
import os, subprocess, sys
environment = dict(os.environ, HERMES_RPC_SOCKET=os.environ['HERMES_RPC_SOCKET'] + '.gone')
child = 'from hermes_tools import read_file\\ntry: print(read_file(\"x\"))\\nexcept ConnectionError as error: print(\"cannot reach\" in str(error))'
print(subprocess.check_output([sys.executable, '-c', child], env=environment).decode(), end='')
del environment['HERMES_RPC_SOCKET']
print(subprocess.check_output([sys.executable, '-c', child], env=environment).decode(), end='')
environment['HERMES_RPC_SOCKET'] = 'tcp:127.0.0.1:nonsense'
print(subprocess.check_output([sys.executable, '-c', child], env=environment).decode(), end='')
";
    assert_eq!(session.ok(code), "True\nTrue\nTrue\n");
}
