//! `read_file` and `write_file` in all their paths.

use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::{Value, json};

use crate::rig::{Rig, TestSession};
use crate::{Case, cases};

pub(crate) const CASES: &[Case] = cases![
    keys_are_always_the_same,
    paths_start_at_the_working_directory_or_home,
    a_line_of_8_mib_is_read_in_pieces,
    what_lets_the_account_in_is_not_written,
    pages_join_to_the_whole,
    what_cannot_be_read_says_why,
    what_cannot_be_written_says_why_and_changes_nothing,
    folders_are_made_and_told,
    the_spill_file_can_be_read,
];

fn call(session: &TestSession, tool: &str, arguments: &Value) -> Value {
    let arguments = json!(arguments.to_string()).to_string();
    session.value(&format!(
        "import json\nfrom hermes_tools import {tool}\nprint(json.dumps({tool}(**json.loads({arguments}))))"
    ))
}

fn read(session: &TestSession, arguments: &Value) -> Value {
    call(session, "read_file", arguments)
}

fn write(session: &TestSession, path: impl AsRef<Path>, content: &str) -> Value {
    call(
        session,
        "write_file",
        &json!({"path": path.as_ref(), "content": content}),
    )
}

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

fn keys_are_always_the_same(rig: &Rig) {
    let session = rig.session();
    rig.file("f", "a\nb\nc\n");
    rig.file("empty", "");
    let whole = read(&session, &json!({"path": "f"}));
    assert_eq!(
        whole,
        json!({"content": "1|a\n2|b\n3|c", "total_lines": 3, "file_size": 6, "truncated": false})
    );
    let empty = read(&session, &json!({"path": "empty"}));
    assert_eq!(
        empty,
        json!({"content": "", "total_lines": 0, "file_size": 0, "truncated": false})
    );
    let part = read(&session, &json!({"path": "f", "limit": 2}));
    assert_eq!(
        keys(&part),
        [
            "content",
            "total_lines",
            "file_size",
            "truncated",
            "next_offset",
            "hint"
        ]
    );
    assert_eq!(
        (&part["content"], &part["next_offset"]),
        (&json!("1|a\n2|b"), &json!(3))
    );
    let past = read(&session, &json!({"path": "f", "offset": 100}));
    assert_eq!(
        (&past["content"], &past["truncated"], &past["total_lines"]),
        (&json!(""), &json!(false), &json!(3))
    );
    assert_eq!(keys(&read(&session, &json!({"path": "gone"}))), ["error"]);
    let path = rig.work().canonicalize().unwrap().join("g");
    assert_eq!(
        write(&session, "g", "ü"),
        json!({"bytes_written": 2, "dirs_created": [], "resolved_path": path})
    );
    assert_eq!(keys(&write(&session, ".", "x")), ["error"]);
}

fn paths_start_at_the_working_directory_or_home(rig: &Rig) {
    let session = rig.session();
    std::fs::write(rig.home().join("at home"), "home").unwrap();
    rig.file("sub/in sub", "sub");
    rig.file("~odd", "odd");
    let absolute = rig.work().join("sub/in sub").display().to_string();
    for (path, content) in [
        ("~/at home", "1|home"),
        ("sub/in sub", "1|sub"),
        ("./sub/../sub/in sub", "1|sub"),
        (&absolute, "1|sub"),
        ("~odd", "1|odd"),
    ] {
        assert_eq!(read(&session, &json!({ "path": path }))["content"], content, "{path}");
    }
    write(&session, "~/made/by tool", "x");
    assert_eq!(std::fs::read(rig.home().join("made/by tool")).unwrap(), b"x");
    session.ok("from hermes_tools import terminal\nterminal('cd sub')");
    assert_eq!(read(&session, &json!({"path": "in sub"}))["content"], "1|sub");
}

fn a_line_of_8_mib_is_read_in_pieces(rig: &Rig) {
    let printed = rig.session().ok("
import json
from hermes_tools import read_file, write_file
text = json.dumps({'key': ['ü' * 99 + str(n) for n in range(50000)]}, ensure_ascii=False)
write_file('one.json', text)
def pieces(**options):
    offset = 1
    while True:
        page = read_file('one.json', offset=offset, **options)
        yield page
        if not page['truncated']: return
        offset = page['next_offset']
pages = list(pieces())
print(len(text.encode()) > 8 << 20, len(pages) > 8, max(len(page['content'].encode()) for page in pages) <= 1 << 20)
print(''.join(page['content'].partition('|')[2] for page in pages) == text, 'one page holds' in pages[0]['hint'])
print(json.loads(''.join(page['content'] for page in pieces(raw=True))) == json.loads(text))
print('1 line, as many as limit allows' in read_file('/etc/passwd', limit=1)['hint'])");
    assert_eq!(printed, "True True True\nTrue True\nTrue\nTrue\n");
}

fn pages_join_to_the_whole(rig: &Rig) {
    let text: String = (1..=5000).map(|number| format!("line {number} ü\n")).collect();
    rig.file("long", &text);
    let code = "
from hermes_tools import read_file
def pages(**options):
    offset, parts = 1, []
    while True:
        page = read_file('long', offset=offset, **options)
        parts.append(page['content'])
        if not page['truncated']: return parts
        offset = page['next_offset']
with open('long', newline='') as file: whole = file.read()
print(''.join(pages(raw=True)) == whole, len(pages()), ''.join(pages(raw=True, limit=700)) == whole)
lines = '\\n'.join(pages(limit=999)).split('\\n')
print(lines == ['%d|%s' % (n, line) for n, line in enumerate(whole.splitlines(), 1)])
page = read_file('long', 4999)
print(page['content'], page['total_lines'], read_file('long', 10, 1)['content'], read_file('long', '10', 1)['content'])
for offset in (0, -1, 'x', '1:', '', '5:x', 1.5, None):
    print('offset' in read_file('long', offset=offset)['error'], end=' ')
";
    let mut cell = talaria_broker::session::Cell::new(code);
    cell.limits.max_tool_calls = Some(100);
    let outcome = rig.session().run(cell);
    assert_eq!(
        outcome.output,
        "True 3 True\nTrue\n4999|line 4999 ü\n5000|line 5000 ü 5000 10|line 10 ü 10|line 10 ü\n".to_owned()
            + &"True ".repeat(8),
        "{outcome:#?}"
    );
}

fn what_cannot_be_read_says_why(rig: &Rig) {
    rig.file("config.yaml", "a");
    rig.file("image.png", b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00");
    std::fs::create_dir(rig.work().join("folder")).unwrap();
    symlink("circle", rig.work().join("circle")).unwrap();
    symlink("nowhere", rig.work().join("dangling")).unwrap();
    let session = rig.session();
    session.ok("import os; os.mkfifo('fifo')");
    for (path, words) in [
        ("config.yml", vec!["does not exist", "config.yaml"]),
        ("no/such/place", vec!["does not exist"]),
        ("folder", vec!["folder"]),
        ("", vec!["empty"]),
        ("a\0b", vec!["NUL"]),
        ("circle", vec!["circle"]),
        ("dangling", vec!["does not exist"]),
        ("config.yaml/x", vec!["file"]),
        ("image.png", vec!["PNG"]),
        ("fifo", vec!["fifo"]),
        ("/dev/zero", vec!["a device"]),
        ("/dev/null", vec!["a device"]),
        ("/dev/stdin", vec!["/dev/stdin"]),
        ("/proc/self/status", vec!["each process"]),
    ] {
        let result = read(&session, &json!({ "path": path }));
        assert_eq!(keys(&result), ["error"], "{path}: {result:.300}");
        for word in words {
            assert!(result["error"].as_str().unwrap().contains(word), "{path}: {result}");
        }
    }
    assert!(
        read(&session, &json!({"path": "/proc/version"}))["content"]
            .as_str()
            .unwrap()
            .contains("Linux")
    );
    rig.file("bom", "\u{feff}a");
    assert_eq!(read(&session, &json!({"path": "bom"}))["content"], "1|a");
    assert_eq!(
        read(&session, &json!({"path": "bom", "raw": true}))["content"],
        "\u{feff}a"
    );
    // Nearly text is text.
    rig.file("latin", b"caf\xe9\n");
    assert_eq!(read(&session, &json!({"path": "latin"}))["content"], "1|caf\u{e9}");
}

fn what_cannot_be_written_says_why_and_changes_nothing(rig: &Rig) {
    rig.file("file", "old");
    std::fs::create_dir(rig.work().join("folder")).unwrap();
    symlink("circle", rig.work().join("circle")).unwrap();
    symlink("/dev/stdout", rig.work().join("to-stdout")).unwrap();
    symlink("/dev", rig.work().join("devices")).unwrap();
    let session = rig.session();
    for (path, word) in [
        ("folder", "folder"),
        ("folder/", "folder"),
        ("new/", "folder"),
        (".", "folder"),
        ("..", ""),
        ("", "empty"),
        ("a\0b", "NUL"),
        ("file/x", "file"),
        ("file/x/y", "file"),
        ("circle", "circle"),
        ("/proc/no-such/file", "/proc"),
        ("/dev/full", "full"),
        ("/dev/stdout", "each process"),
        ("/proc/self/fd/1", "each process"),
        ("to-stdout", "each process"),
        ("devices/fd/1", "each process"),
        (&format!("sub/{}", "n".repeat(300)), "too long"),
    ] {
        let result = write(&session, path, "new");
        assert_eq!(keys(&result), ["error"], "{path}: {result}");
        assert!(result["error"].as_str().unwrap().contains(word), "{path}: {result}");
    }
    let mut names: Vec<_> = std::fs::read_dir(rig.work())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["circle", "devices", "file", "folder", "to-stdout"]);
    assert_eq!(std::fs::read(rig.work().join("file")).unwrap(), b"old");
    assert_eq!(write(&session, "/dev/null", "x")["bytes_written"], 1);
}

fn folders_are_made_and_told(rig: &Rig) {
    let session = rig.session();
    let work = rig.work().canonicalize().unwrap();
    let result = write(&session, "a/b c/d.txt", "x");
    assert_eq!(result["dirs_created"], json!([work.join("a"), work.join("a/b c")]));
    assert_eq!(result["resolved_path"], json!(work.join("a/b c/d.txt")));
    assert_eq!(write(&session, "a/b c/../e.txt", "x")["dirs_created"], json!([]));
    assert!(work.join("a/e.txt").is_file());
}

fn the_spill_file_can_be_read(rig: &Rig) {
    let session = rig.session();
    let outcome = session.cell("for number in range(20000): print('line', number)");
    let path = outcome.stdout_spill_path.expect("it was too long");
    let result = read(&session, &json!({"path": path, "offset": 10001, "limit": 1}));
    assert_eq!(result["content"], "10001|line 10000", "{result}");
    // Where the other tools do not see it, they say what does.
    let code = format!(
        "
from hermes_tools import patch, search_files, terminal
for answer in search_files('line', path='{path}'), patch('{path}', 'line 1', 'x'), terminal('head {path}'):
    print(not answer.get('error') or 'only read_file reads it' in answer['error'])"
    );
    assert_eq!(session.ok(&code), "True\n".repeat(3));
}

fn what_lets_the_account_in_is_not_written(rig: &Rig) {
    let code = "
import os
from hermes_tools import write_file, patch
os.makedirs(os.path.expanduser('~/.ssh'), exist_ok=True)
if not os.path.lexists('link'): os.symlink(os.path.expanduser('~/.bashrc'), 'link')
for path in ('~/.bashrc', '~/.ssh/authorized_keys', 'link', '~/x/../.profile', '/etc/sudoers.d/new'):
    answers = write_file(path, 'x'), patch(mode='patch', patch='*** Begin Patch\\n*** Add File: %s\\n+x\\n*** End Patch' % path)
    print(*['protect_files' in answer.get('error', '') for answer in answers], os.path.exists(os.path.expanduser(path)))
os.makedirs(os.path.expanduser('~/dot/gnupg'), exist_ok=True)
for name, behind in (('~/.zshrc', 'dot/zshrc'), ('~/.gnupg', 'dot/gnupg')):
    open(os.path.expanduser('~/dot/zshrc'), 'w').write('x')
    if not os.path.lexists(os.path.expanduser(name)): os.symlink(behind, os.path.expanduser(name))
delete = '*** Begin Patch\\n*** Delete File: ~/.zshrc\\n*** End Patch'
for answer in write_file('~/.zshrc', 'y'), write_file('~/.gnupg/x', 'y'), patch('~/.zshrc', 'x', 'y'), patch(patch=delete):
    print('protect_files' in answer.get('error', ''), end=' ')
print(open(os.path.expanduser('~/.zshrc')).read())
import hermes_tools
print('protect_files' in write_file(os.path.dirname(hermes_tools.__file__) + '/hermes_tools.py', 'x').get('error', ''))
print(write_file('~/project/.bashrc', 'x')['bytes_written'], write_file('~/.ssh/known_hosts', 'x')['bytes_written'])";
    assert_eq!(
        rig.session().ok(code),
        "True True False\n".repeat(5) + "True True True True x\nTrue\n1 1\n"
    );
    let session = rig.session_with(|options| options.protect_files = false);
    let written = "from hermes_tools import write_file\nprint(write_file('~/.bashrc', 'x')['bytes_written'])";
    assert_eq!(session.ok(written), "1\n");
}
