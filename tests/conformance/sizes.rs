//! Large and odd arguments and results: byte for byte, or an error that names the limit.

use std::sync::atomic::Ordering;

use crate::calls::transports;
use crate::odd_tools::OddTools;
use crate::rig::{Rig, TestSession};
use crate::tool_host::TestTools;
use crate::{Case, cases};

pub(crate) const CASES: &[Case] = cases![
    the_largest_argument_and_result_pass_whole,
    what_is_too_large_names_the_limit_and_ran_at_most_once,
    deep_arguments_pass_or_are_named,
    a_large_file_is_written_and_read_whole,
];

/// What holds over each of two kinds of sockets here; elsewhere it is a case of the contract.
pub(crate) const CASES_HERE: &[Case] = cases![sizes_around_every_border_pass_whole, any_text_passes_whole];

fn sessions(rig: &Rig) -> Vec<(TestSession, std::sync::Arc<TestTools>)> {
    let open = |transport| {
        let tools = TestTools::new();
        let session = rig.session_with(|options| {
            options.host = tools.clone();
            options.rpc = transport;
        });
        (session, tools)
    };
    transports(rig).iter().map(|&transport| open(transport)).collect()
}

fn sizes_around_every_border_pass_whole(rig: &Rig) {
    for (session, tools) in sessions(rig) {
        let code = "
from hermes_tools import echo
sizes = [0, 1, 3, 4, 4093, 8191, 8192, 16380, 16384] + [n * 1024 + d for n in (64, 128) for d in (-1, 0, 1)] + [2**20 - 1, 2**20, 2**20 + 1, 5_000_000]
for size in sizes:
    text = ('0123456789abcdef' * (size // 16 + 1))[:size]
    if echo(text) != {'value': text}: print('differs', size)
    if echo('é' * (size // 2))['value'] != 'é' * (size // 2): print('differs', size)
print(len(sizes))
";
        assert_eq!(session.ok(code), "19\n");
        assert_eq!(tools.calls("echo").len(), 38);
    }
}

fn the_largest_argument_and_result_pass_whole(rig: &Rig) {
    // Both ways; and what JSON writes longest.
    for ((session, tools), text) in sessions(rig)
        .into_iter()
        .zip(["'x' * (64 << 20)", "'\\x01' * (16 << 20)"])
    {
        let code = format!("from hermes_tools import echo\ntext = {text}\nprint(echo(text)['value'] == text)");
        assert_eq!(session.ok(&code), "True\n");
        assert_eq!(tools.calls("echo").len(), 1);
    }
}

fn what_is_too_large_names_the_limit_and_ran_at_most_once(rig: &Rig) {
    let tools = OddTools::meeting(1);
    let session = rig.session_with(|options| options.host = tools.clone());
    let code = "
from hermes_tools import plain, big
print('64 MiB' in plain('x' * (64 << 20) + 'x')['error'])
print('64 MiB' in plain(['x' * (33 << 20)] * 2)['error'])
";
    assert_eq!(session.ok(code), "True\nTrue\n");
    assert_eq!(tools.begun.load(Ordering::SeqCst), 0);
    let code = "
print(len(big(64 << 20)['value']) == 64 << 20)
result = big(70 << 20)
print(list(result), '64 MiB' in result['error'])
print(plain('on'))
";
    let outcome = session.cell(code);
    assert_eq!(outcome.output, "True\n['error'] True\non\n", "{outcome:#?}");
    assert_eq!(outcome.tool_calls_made, 3);
    assert_eq!(tools.begun.load(Ordering::SeqCst), 3);
}

fn any_text_passes_whole(rig: &Rig) {
    for (session, _) in sessions(rig) {
        let code = r#"
from hermes_tools import echo
every = "".join(chr(n) for n in range(0x110000) if not 0xD800 <= n < 0xE000)
texts = [every, every[::-1], '\\"/\b\f\n\r\t', "--- stderr ---", "EOF\n$(x) `y` ${z}", "\ufeff", "\r\n\r", "{\"a\": 1}", "]", "\x00" * 70000, "🦀" * 50000]
for text in texts:
    if echo(text)["value"] != text or echo({text[:1000]: [text]})["value"] != {text[:1000]: [text]}: print("differs", ascii(text[:20]))
print(len(texts))
"#;
        assert_eq!(session.ok(code), "11\n");
    }
}

fn deep_arguments_pass_or_are_named(rig: &Rig) {
    let (session, tools) = sessions(rig).remove(0);
    let code = "
from hermes_tools import echo
def deep(levels, make):
    value = 1
    for _ in range(levels): value = make(value)
    return value
for make in (lambda v: [v], lambda v: {'a': v}, lambda v: (v,)):
    for levels in (1, 50, 99, 100):
        result = echo(deep(levels, make))
        print('error' in result or result['value'] == deep(levels, lambda v: list(make(v)) if isinstance(make(v), tuple) else make(v)), end=' ')
    for levels in (101, 128, 200, 990, 100_000):
        print(levels, 'deep' in echo(deep(levels, make)).get('error', ''), end=' ')
    print()
print(echo('[' * 5000))
";
    let printed = session.ok(code);
    let line = "True True True True 101 True 128 True 200 True 990 True 100000 True \n";
    assert!(printed.starts_with(&line.repeat(3)), "{printed:.600}");
    assert!(
        printed.ends_with("[['value'\n") || printed.contains("{'value': '[[["),
        "{printed:.600}"
    );
    assert_eq!(tools.calls("echo").len(), 13);
}

fn a_large_file_is_written_and_read_whole(rig: &Rig) {
    let session = rig.session();
    let code = r#"
from hermes_tools import read_file, write_file
line = "line of text é %s\n" % ("x" * 80)
text = line * 100_000
written = write_file("big.txt", text)
with open("big.txt", encoding="utf-8", newline="") as file: print(file.read() == text, written["bytes_written"] == len(text.encode()))
page = read_file("big.txt", limit=10**9, raw=True)
print(page["content"] == text, page["truncated"], page["total_lines"] == text.count("\n") + (not text.endswith("\n")))
# More than a result holds, one line alone being more.
whole = text + "é" * (33 << 20) + "x\n" + text
with open("huge.txt", "w", newline="") as file: file.write(whole)
parts, offset = [], 1
while True:
    page = read_file("huge.txt", offset=offset, limit=10**9, raw=True)
    parts.append(page["content"])
    if not page["truncated"]: break
    offset = page["next_offset"]
print("".join(parts) == whole, len(parts) > 1)
"#;
    assert_eq!(session.ok(code), "True True\nTrue False True\nTrue True\n");
}
