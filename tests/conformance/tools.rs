//! What a script sees of its tools, and which of its calls are answered.

use serde_json::json;
use talaria_broker::outcome::Status;
use talaria_broker::session::Cell;

use crate::odd_tools::OddTools;
use crate::rig::{Rig, TestSession};
use crate::tool_host::TestTools;
use crate::{Case, cases};

pub(crate) const CASES: &[Case] = cases![
    signatures_hints_and_docstrings,
    all_names_what_there_is,
    a_cell_sees_only_what_it_may_call,
    forged_calls_are_refused_and_free,
    the_budget_counts_what_ran,
    each_cell_has_its_own_host,
    a_host_that_panics_is_an_error,
    a_host_that_blocks_holds_up_nobody,
    any_json_value_is_an_answer,
];

/// Runs a cell that may call only some tools.
fn with_tools(session: &TestSession, tools: &[&str], code: &str) -> String {
    let mut cell = Cell::new(code);
    cell.allowed_tools = Some(tools.iter().map(|&name| name.to_owned()).collect());
    let outcome = session.run(cell);
    assert_eq!(outcome.status, Status::Success, "{code}\n{outcome:#?}");
    outcome.output
}

fn signatures_hints_and_docstrings(rig: &Rig) {
    let code = r#"
import inspect, json
import hermes_tools
def described(function):
    signature = inspect.signature(function)
    def hint(note):
        return (note if isinstance(note, str) else note.__name__).strip("'\"")
    return {
        "parameters": [[p.name, hint(p.annotation), None if p.default is p.empty else repr(p.default)] for p in signature.parameters.values()],
        "returns": hint(signature.return_annotation),
        "doc": len(inspect.getdoc(function)) > 100 and all(name in inspect.getdoc(function) for name in signature.parameters),
    }
def all_of_them():
    return {name: described(getattr(hermes_tools, name)) for name in ("read_file", "write_file", "patch", "terminal", "web_search", "web_extract")}
"#;
    rig.file("described.py", code);
    let session = rig.session();
    let expected = json!({
        "read_file": {"parameters": [["path", "str", null], ["offset", "int | str", "1"], ["limit", "int", "2000"], ["raw", "bool", "False"]], "returns": "dict", "doc": true},
        "write_file": {"parameters": [["path", "str", null], ["content", "str", null]], "returns": "dict", "doc": true},
        "patch": {"parameters": [["path", "str | None", "None"], ["old_string", "str | None", "None"], ["new_string", "str | None", "None"], ["replace_all", "bool", "False"], ["mode", "str", "'replace'"], ["patch", "str | None", "None"]], "returns": "dict", "doc": true},
        "terminal": {"parameters": [["command", "str", null], ["timeout", "float | None", "None"], ["workdir", "str | None", "None"]], "returns": "dict", "doc": true},
        "web_search": {"parameters": [["query", "str", null], ["limit", "int", "5"]], "returns": "dict", "doc": true},
        "web_extract": {"parameters": [["urls", "list | str", null], ["char_limit", "int | None", "None"]], "returns": "dict", "doc": true},
    });
    let here = "import json, described; print(json.dumps(described.all_of_them()))";
    assert_eq!(session.value(here), expected);
    // The same after the list has changed, and in a child.
    with_tools(&session, &["read_file"], "pass");
    assert_eq!(session.value(here), expected);
    let child = format!(
        "import subprocess, sys\nprint(subprocess.check_output([sys.executable, '-c', {}]).decode())",
        json!(here)
    );
    assert_eq!(session.value(&child), expected);
}

fn all_names_what_there_is(rig: &Rig) {
    let session = rig.session();
    let code = "import hermes_tools\nprint(*sorted(hermes_tools.__all__))";
    assert_eq!(
        session.ok(code),
        "json_parse patch read_file retry search_files shell_quote terminal web_extract web_search write_file\n"
    );
    assert_eq!(
        with_tools(&session, &["terminal"], code),
        "json_parse retry shell_quote terminal\n"
    );
    let star =
        "from hermes_tools import *\nprint('read_file' in globals(), 'terminal' in globals(), '_call' in globals())";
    let fresh = rig.session();
    assert_eq!(with_tools(&fresh, &["terminal"], star), "False True False\n");
    let disabled = rig.session_with(|options| options.disabled_tools = vec!["write_file".into()]);
    assert_eq!(
        disabled.ok(code),
        "json_parse patch read_file retry search_files shell_quote terminal web_extract web_search\n"
    );
}

fn a_cell_sees_only_what_it_may_call(rig: &Rig) {
    let session = rig.session();
    let look = "
import hermes_tools
try:
    from hermes_tools import terminal
    print('imported', 'error' in terminal('true') and terminal('true')['error'])
except ImportError as error:
    print(error)
print(hasattr(hermes_tools, 'terminal'), hasattr(hermes_tools, 'read_file'))
import subprocess, sys
print(subprocess.run([sys.executable, '-c', 'from hermes_tools import terminal'], stderr=subprocess.PIPE).stderr.decode().strip().split('\\n')[-1])
";
    let refused = |names: &str| format!("terminal is not available in scripts; available: {names}");
    for _ in 0..2 {
        assert_eq!(session.ok(look), "imported None\nTrue True\n\n");
        let line = refused("read_file");
        assert_eq!(
            with_tools(&session, &["read_file"], look),
            format!("{line}\nFalse True\nImportError: {line}\n")
        );
        let line = refused("none");
        assert_eq!(
            with_tools(&session, &[], look),
            format!("{line}\nFalse False\nImportError: {line}\n")
        );
    }
    // A function kept from a cell that had it.
    session.ok("from hermes_tools import terminal as kept, _call");
    let printed = with_tools(
        &session,
        &["read_file"],
        "print(kept('touch ran')); print(_call('terminal', {'command': 'touch ran'}))",
    );
    let error = format!("{{'error': '{}'}}\n", refused("read_file"));
    assert_eq!(printed, error.repeat(2));
    assert!(!rig.work().join("ran").exists());
    let outcome = session.run(Cell {
        allowed_tools: Some(vec!["read_file".into()]),
        ..Cell::new("from hermes_tools import terminal")
    });
    assert_eq!(
        outcome.error.as_deref(),
        Some(format!("ImportError: {}", refused("read_file")).as_str())
    );
    assert_eq!(session.ok("print(kept('echo back')['output'])"), "back\n\n");
}

fn forged_calls_are_refused_and_free(rig: &Rig) {
    let session = rig.session();
    let code = r#"
from hermes_tools import _call
class Odd: pass
loop = []; loop.append(loop)
deep = 1
for _ in range(5000): deep = [deep]
calls = [
    ("execute_code", {"code": "1"}), ("delegate_task", {}), ("no_such_tool", {}), ("", {}), ("../read_file", {}), ("read_file\n", {}),
    ("x" * 100_000, {}), (5, {}), (None, {}), (["read_file"], {}), ("_call", {}), ("json_parse", {"text": "1"}),
    ("write_file", {}), ("write_file", {"path": "ran"}), ("write_file", {"path": "ran", "content": 5}),
    ("write_file", {"path": "ran", "content": None}), ("write_file", {"path": ["ran"], "content": ""}),
    ("write_file", {"path": "ran", "content": "", "mode": 1}), ("write_file", ["ran", ""]), ("write_file", None), ("write_file", "ran"),
    ("write_file", {"path": "ran", "content": b"x"}), ("write_file", {"path": "ran", "content": {1}}),
    ("write_file", {"path": "ran", "content": float("nan")}), ("write_file", {"path": "ran", "content": Odd()}),
    ("write_file", {"path": "ran", "content": "\ud800"}), ("write_file", {"path": "ran\udcff", "content": ""}),
    ("write_file", {"path": "ran", "content": loop}), ("write_file", {"path": "ran", "content": deep}),
    ("write_file", {"path": "ran", "content": "", 5: 5}), ("write_file", {"path": "ran", "content": "", ("a",): 5}),
    ("read_file", {"path": "f", "limit": 10**400}), ("read_file", {"path": "f", "limit": 10**5000}), ("read_file", {"path": "f", "limit": True}),
]
for name, arguments in calls:
    result = _call(name, arguments)
    if not (isinstance(result, dict) and list(result) == ["error"] and 10 < len(result["error"]) < 1000):
        print(repr(name)[:50], repr(arguments)[:50] if arguments is not loop else "", "->", repr(result)[:200])
print(_call("no_such_tool", {})["error"])
"#;
    let outcome = session.cell(code);
    assert_eq!(
        outcome.output,
        "no_such_tool is not available in scripts; available: read_file, write_file, search_files, patch, terminal, web_search, web_extract\n",
        "{outcome:#?}"
    );
    assert_eq!(outcome.tool_calls_made, 0);
    assert!(!rig.work().join("ran").exists());
}

fn the_budget_counts_what_ran(rig: &Rig) {
    let tools = TestTools::new();
    let session = rig.session_with(|options| {
        options.host = tools.clone();
        options.limits.max_tool_calls = 3;
    });
    let code = "
from hermes_tools import echo, fail, _call
_call('nothing', {}); _call('echo', {}); _call('echo', {'value': 1, 'more': 2})
print(echo(1), fail()['error'][:9], echo(2))
for _ in range(3): print(echo(3)['error'])
print('and on')
";
    let refused = "the limit of 3 tool calls per cell is reached and echo was not run; print what you have, or go on in another call\n";
    for round in 1..3 {
        let outcome = session.cell(code);
        assert_eq!(
            outcome.output,
            format!("{{'value': 1}} it failed {{'value': 2}}\n{}and on\n", refused.repeat(3))
        );
        assert_eq!((outcome.status, outcome.tool_calls_made), (Status::Success, 3));
        assert_eq!(tools.calls("echo").len(), 2 * round);
    }
    let mut cell = Cell::new(
        "from concurrent.futures import ThreadPoolExecutor as P\nfrom hermes_tools import echo\nwith P(20) as p: print(sum('error' not in r for r in p.map(echo, range(100))))",
    );
    cell.limits.max_tool_calls = Some(50);
    let outcome = session.run(cell);
    assert_eq!((outcome.output.as_str(), outcome.tool_calls_made), ("50\n", 50));
    let none = session.run(Cell {
        limits: talaria_broker::limits::LimitOverrides {
            max_tool_calls: Some(0),
            ..Default::default()
        },
        ..Cell::new("print('error' in echo(1))")
    });
    assert_eq!((none.output.as_str(), none.tool_calls_made), ("True\n", 0));
}

fn each_cell_has_its_own_host(rig: &Rig) {
    let (first, second) = (TestTools::new(), TestTools::new());
    let session = rig.session_with(|options| options.host = first.clone());
    session.ok("from hermes_tools import count\ncount()");
    let mut cell = Cell::new("print(count())");
    cell.host = Some(second.clone());
    assert_eq!(session.run(cell).output, "{'count': 1}\n");
    assert_eq!(session.ok("print(count())"), "{'count': 2}\n");
    assert_eq!(second.calls("count").len(), 1);
}

fn a_host_that_panics_is_an_error(rig: &Rig) {
    let tools = OddTools::meeting(1);
    let session = rig.session_with(|options| options.host = tools.clone());
    let outcome = session.cell(
        "from hermes_tools import panics, plain\nprint(panics('x')['error'])\nprint(plain('on'), list(panics()))",
    );
    assert_eq!(outcome.status, Status::Success, "{outcome:#?}");
    assert!(
        outcome.output.contains("panics") && outcome.output.contains("the host broke"),
        "{outcome:#?}"
    );
    assert!(outcome.output.ends_with("\non ['error']\n"), "{outcome:#?}");
    assert_eq!(outcome.tool_calls_made, 3);
}

fn a_host_that_blocks_holds_up_nobody(rig: &Rig) {
    let tools = OddTools::meeting(1);
    let session = rig.session_with(|options| options.host = tools.clone());
    let code = "
import threading
from hermes_tools import blocks, plain
threading.Thread(target=blocks, args=(2,), daemon=True).start()
while plain(1) != 1: pass
print([plain(n) for n in range(20)] == list(range(20)))
";
    assert_eq!(session.ok(code), "True\n");
    // Past its limit the cell ends, whatever the host does.
    let outcome = session.cell_for(0.5, "blocks(2)");
    assert_eq!(outcome.status, Status::Timeout);
}

fn any_json_value_is_an_answer(rig: &Rig) {
    let tools = OddTools::meeting(1);
    let session = rig.session_with(|options| options.host = tools.clone());
    let code = r#"
from hermes_tools import plain, deep
values = [None, True, 0, -1, 2**53, -2**63, 2**64 - 1, 1.5, 1e300, -0.0, "", "x", [], {}, [[], {}], {"": {"a": [None]}},
          "\x00\x01\x1f\x7f\x80\u2028\u2029\ufeff\ufffd\U0001f980\"\\/", {"error": "no error"}, {"\u2028\x00": 1}, "NaN"]
for value in values:
    if plain(value) != value or type(plain(value)) is not type(value): print("differs", repr(value), repr(plain(value)))
for levels in (100, 1_000, 20_000):
    result = deep(levels)
    depth = 0
    while isinstance(result, list): result, depth = result[0], depth + 1
    print(depth == levels or "error" in result)
print(plain("on"))
"#;
    let mut cell = Cell::new(code);
    cell.limits.max_tool_calls = Some(200);
    let outcome = session.run(cell);
    assert_eq!(outcome.output, "True\nTrue\nTrue\non\n", "{outcome:#?}");
}
