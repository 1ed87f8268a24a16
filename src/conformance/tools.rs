//! What a script sees of its tools, and which of its calls are answered.

use serde_json::json;

use super::bench::Bench;
use super::case::{Case, Checked, case};
use super::check::{contains, equal, holds};
use super::outcomes::ended;
use super::seat::{allowing, builtin};
use crate::outcome::Status;

pub(super) const CASES: &[Case] = &[
    case!(names_and_signatures),
    case!(helpers_do_what_they_say),
    case!(a_cell_sees_only_what_it_may_call),
    case!(a_function_kept_from_an_earlier_cell_is_refused)
        .with_kernel()
        .in_folder(),
    case!(forged_calls_are_refused_and_free).in_folder(),
    case!(what_the_stub_lacks_is_refused).in_folder(),
    case!(a_tool_that_fails_is_a_dict_with_an_error),
    case!(calls_that_came_to_something_are_counted),
    case!(web_search_says_how_to_configure_it),
    case!(web_extract_refuses_what_is_not_public),
];

const SIGNATURES: &str = r#"
import inspect, json
import hermes_tools
names = ["read_file", "write_file", "search_files", "patch", "terminal", "web_search", "web_extract"]
found = {}
for name in names:
    function = getattr(hermes_tools, name)
    parameters = inspect.signature(function).parameters.values()
    assert all(p.annotation is not p.empty for p in parameters) and inspect.getdoc(function), name
    found[name] = ", ".join(p.name if p.default is p.empty else "%s=%r" % (p.name, p.default) for p in parameters)
print(json.dumps(found))
"#;

async fn names_and_signatures(bench: &Bench) -> Checked {
    let expected = json!({
        "read_file": "path, offset=1, limit=2000, raw=False",
        "write_file": "path, content",
        "search_files": "pattern, target='content', path='.', file_glob=None, limit=50, offset=0, output_mode='content', context=0",
        "patch": "path=None, old_string=None, new_string=None, replace_all=False, mode='replace', patch=None",
        "terminal": "command, timeout=None, workdir=None",
        "web_search": "query, limit=5",
        "web_extract": "urls, char_limit=None",
    });
    equal("the signatures", &bench.value(SIGNATURES).await?, &expected)?;
    let all = "import hermes_tools\nprint(*sorted(hermes_tools.__all__))";
    let expected =
        "json_parse patch read_file retry search_files shell_quote terminal web_extract web_search write_file\n";
    bench.prints(all, expected).await
}

async fn helpers_do_what_they_say(bench: &Bench) -> Checked {
    let code = r##"
from hermes_tools import json_parse, shell_quote, retry, terminal
print(json_parse('\ufeff{"a": "x\ty\nz"}') == {"a": "x\ty\nz"}, json_parse(b'\xef\xbb\xbf[1]'))
try: json_parse("{no")
except ValueError as error: print("ValueError")
for text in ("", "a b", "it's", "$x `y` \\", "-n", "größe", "#no", "~", "*"):
    shown = terminal("printf %s " + shell_quote(text))["output"]
    if shown != text: print("differs", repr(text), repr(shown))
tried = []
def third():
    tried.append(1)
    if len(tried) < 3: raise OSError("not yet")
    return "done"
print(retry(third, max_attempts=3, delay=0.01), len(tried))
try: retry(lambda: 1 / 0, max_attempts=2, delay=0.01)
except ZeroDivisionError as error: print(error)
"##;
    bench
        .prints(code, "True [1]\nValueError\ndone 3\ndivision by zero\n")
        .await
}

async fn a_cell_sees_only_what_it_may_call(bench: &Bench) -> Checked {
    let look = "
import hermes_tools
print(hasattr(hermes_tools, 'terminal'), hasattr(hermes_tools, 'read_file'))
try: from hermes_tools import terminal
except ImportError as error: print(error)
print(hermes_tools._call('terminal', {'command': 'true'}).get('error'))
";
    for _ in 0..2 {
        let one = bench.run(allowing(look, &["read_file"])).await?;
        let refused = "terminal is not available in scripts; available: read_file";
        equal(
            "with read_file alone",
            one.output.as_str(),
            format!("False True\n{refused}\n{refused}\n").as_str(),
        )?;
        equal("calls that count", &one.tool_calls_made, &0)?;
        let none = bench.run(allowing(look, &[])).await?;
        contains("with no tool", &none.output, &["False False\n", "available: none"])?;
        equal(
            "with all tools",
            bench.cell(look).await?.output.as_str(),
            "True True\nNone\n",
        )?;
    }
    Ok(())
}

async fn a_function_kept_from_an_earlier_cell_is_refused(bench: &Bench) -> Checked {
    bench.ok("from hermes_tools import terminal as kept").await?;
    let outcome = bench.run(allowing("print(kept('touch ran'))", &["read_file"])).await?;
    contains("its answer", &outcome.output, &["terminal is not available in scripts"])?;
    let code = "import os\nprint(os.path.exists('ran'), kept('echo back')['output'])";
    bench.prints(code, "False back\n\n").await
}

const FORGED: &str = r#"
from hermes_tools import _call
loop = []; loop.append(loop)
deep = 1
for _ in range(5000): deep = [deep]
calls = [
    ("execute_code", {"code": "1"}), ("delegate_task", {}), ("no_such_tool", {}), ("", {}), ("../read_file", {}), ("read_file\n", {}),
    ("x" * 100_000, {}), (5, {}), (None, {}), (["read_file"], {}), ("_call", {}), ("json_parse", {"text": "1"}),
    ("write_file", {}), ("write_file", {"path": "ran"}), ("write_file", {"path": "ran", "content": 5}),
    ("write_file", {"path": ["ran"], "content": ""}), ("write_file", {"path": "ran", "content": "", "mode": 1}),
    ("write_file", ["ran", ""]), ("write_file", None), ("write_file", "ran"), ("write_file", {"path": "ran", "content": b"x"}),
    ("write_file", {"path": "ran", "content": float("nan")}), ("write_file", {"path": "ran", "content": "\ud800"}),
    ("write_file", {"path": "ran", "content": loop}), ("write_file", {"path": "ran", "content": deep}),
    ("read_file", {"path": "f", "limit": 10**400}), ("read_file", {"path": "f", "limit": True}),
]
for name, arguments in calls:
    result = _call(name, arguments)
    if not (isinstance(result, dict) and list(result) == ["error"] and 10 < len(result["error"]) < 1000):
        print(repr(name)[:50], repr(arguments)[:50] if arguments is not loop else "", "->", repr(result)[:200])
print(_call("no_such_tool", {})["error"])
import os
print(os.path.exists("ran"))
"#;

async fn forged_calls_are_refused_and_free(bench: &Bench) -> Checked {
    let outcome = bench.cell(FORGED).await?;
    equal(
        "the output",
        outcome.output.as_str(),
        "no_such_tool is not available in scripts; available: read_file, write_file, search_files, patch, terminal, \
         web_search, web_extract\nFalse\n",
    )?;
    equal("calls that count", &outcome.tool_calls_made, &0)
}

async fn what_the_stub_lacks_is_refused(bench: &Bench) -> Checked {
    let code = "import os\nfrom hermes_tools import terminal, _call
for name in ('background', 'pty', 'notify_on_complete', 'watch_patterns'):
    try: terminal('touch ran', **{name: True})
    except TypeError as error: print(name in str(error), end=' ')
    forged = _call('terminal', {'command': 'touch ran', name: True})
    print(name in forged['error'], end=' ')
print(os.path.exists('ran'))";
    bench.prints(code, &format!("{}False\n", "True ".repeat(8))).await
}

async fn a_tool_that_fails_is_a_dict_with_an_error(bench: &Bench) -> Checked {
    let outcome = bench
        .probing("from hermes_tools import fail, echo\nprint(fail())\nprint(echo('on'))")
        .await?;
    ended(&outcome, Status::Success, Some(0))?;
    equal(
        "the output",
        outcome.output.as_str(),
        "{'error': 'it failed, as asked; call another tool'}\n{'value': 'on'}\n",
    )?;
    equal("calls that count", &outcome.tool_calls_made, &2)
}

async fn calls_that_came_to_something_are_counted(bench: &Bench) -> Checked {
    let code = "from hermes_tools import terminal, read_file\nfor _ in range(3): terminal('true')\nread_file('/no/such/file')\nhermes_tools = __import__('hermes_tools')\nhermes_tools._call('nothing', {})";
    equal("tool_calls_made", &bench.cell(code).await?.tool_calls_made, &4)?;
    equal(
        "tool_calls_made of the next cell",
        &bench.run(builtin("1")).await?.tool_calls_made,
        &0,
    )
}

async fn web_search_says_how_to_configure_it(bench: &Bench) -> Checked {
    let result = bench.call("web_search", &json!({"query": "anything"})).await?;
    let error = result["error"].as_str().unwrap_or_default();
    contains("its error", error, &["BRAVE_API_KEY"])
}

async fn web_extract_refuses_what_is_not_public(bench: &Bench) -> Checked {
    let urls = json!({"urls": ["http://127.0.0.1:9/", "http://169.254.169.254/latest", "ftp://example.com/"]});
    let result = bench.call("web_extract", &urls).await?;
    let results = result["results"].as_array().cloned().unwrap_or_default();
    equal("the number of results", &results.len(), &3)?;
    for one in &results {
        holds("an error in its place, and no content", one["error"].is_string(), one)?;
    }
    Ok(())
}
