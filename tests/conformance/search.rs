//! `search_files` as a script uses it.

use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};

use crate::rig::{HANG, Kind, Rig, TestSession};
use crate::{Case, cases};

pub(crate) const CASES: &[Case] = cases![
    a_worktree_that_leads_to_a_pipe_holds_up_nobody,
    what_is_left_out_and_what_a_path_brings_back,
    pages_join_to_the_whole,
    paths_go_to_the_other_tools,
    names_that_are_no_utf8_go_to_the_other_tools,
    what_is_the_sessions_own_is_not_found,
    what_cannot_be_searched_says_so,
    unreadable_folders_are_warned_of,
    a_search_that_nobody_waits_for_ends,
    many_searches_side_by_side,
];

fn search(session: &TestSession, arguments: &Value) -> Value {
    let arguments = json!(arguments.to_string()).to_string();
    session.value(&format!(
        "import json\nfrom hermes_tools import search_files\nprint(json.dumps(search_files(**json.loads({arguments}))))"
    ))
}

fn what_is_left_out_and_what_a_path_brings_back(rig: &Rig) {
    for path in [
        "a.txt",
        "a.log",
        ".env",
        ".config/x",
        "build/a.txt",
        "deep/er/build/a.txt",
        "vendor/v.txt",
    ] {
        rig.file(path, "word");
    }
    rig.file("binary.txt", "word\0");
    rig.file(".gitignore", "*.log\nbuild/\n");
    rig.file("vendor/.ignore", "*\n");
    std::os::unix::fs::symlink("a.txt", rig.work().join("link.txt")).unwrap();
    std::os::unix::fs::symlink(".", rig.work().join("circle")).unwrap();
    let session = rig.session();
    let files = |arguments: Value| {
        let found = search(&session, &arguments);
        found["files"].clone()
    };
    let all = json!({"pattern": "word", "output_mode": "files_only"});
    assert_eq!(files(all.clone()), json!(["a.txt"]));
    for (path, expected) in [
        ("build", json!(["build/a.txt"])),
        (".env", json!([".env"])),
        (".config", json!([".config/x"])),
        ("a.log", json!(["a.log"])),
        ("link.txt", json!(["link.txt"])),
        ("vendor", json!([])),
    ] {
        let mut asked = all.clone();
        asked["path"] = path.into();
        assert_eq!(files(asked), expected, "{path}");
    }
    let hinted = search(&session, &json!({"pattern": "word", "path": "vendor"}));
    assert!(hinted["hint"].as_str().unwrap().contains("vendor/v.txt"), "{hinted}");
    let hinted = search(&session, &json!({"pattern": "word", "file_glob": ["*.rs", "*.go"]}));
    assert!(hinted["hint"].as_str().unwrap().contains("file_glob"), "{hinted}");
    rig.file("windows.txt", "one\r\ntwo\r\n");
    for (arguments, hint) in [
        (json!({"pattern": "windows", "target": "files"}), Some("*windows* fits")),
        (json!({"pattern": "windows*.md", "target": "files"}), None),
        (
            json!({"pattern": "one$", "path": "windows.txt"}),
            Some(r"\r?$ fits both"),
        ),
        (json!({"pattern": r"one\$", "path": "windows.txt"}), None),
        (json!({"pattern": r"one\r?$", "path": "windows.txt"}), None),
    ] {
        let found = search(&session, &arguments);
        let told = found["hint"].as_str();
        assert_eq!(told.is_some(), hint.is_some(), "{arguments}: {found}");
        assert!(
            told.unwrap_or_default().contains(hint.unwrap_or_default()),
            "{arguments}: {found}"
        );
    }
    assert_eq!(
        files(json!({"pattern": "word", "output_mode": "files_only", "file_glob": "!*.txt"})),
        json!([])
    );
}

fn pages_join_to_the_whole(rig: &Rig) {
    for number in 0..40 {
        rig.file(&format!("d{}/f{number}", number % 7), "word\n".repeat(number + 1));
    }
    let code = "
from hermes_tools import search_files
whole = search_files('word', limit=5000)
assert len(whole['matches']) == whole['total_count'] == 820 and not whole['truncated'], whole
offset, joined = 0, []
while True:
    page = search_files('word', offset=offset, limit=61)
    assert page['total_count'] == 820
    joined += page['matches']
    offset += len(page['matches'])
    if not page['truncated']: break
    assert 'offset=%d' % offset in page['hint'], page['hint']
print(joined == whole['matches'], search_files('word', offset=5000)['hint'])
";
    assert_eq!(rig.session().ok(code), "True offset=5000 is past the last result.\n");
}

fn paths_go_to_the_other_tools(rig: &Rig) {
    rig.file("src/deep/one.py", "old_api_call(1)\n");
    rig.file("src/two.py", "x = old_api_call(old_api_call(2))\n");
    std::fs::write(rig.home().join("three.py"), "old_api_call(3)").unwrap();
    let code = "
from hermes_tools import search_files, read_file, terminal
def found(path): return [match['path'] for match in search_files('old_api_call', path=path, file_glob='*.py')['matches']]
print(found('src/'), found('.'), found('~'), found('../work/src'))
for path in ('src', '~', '..'):
    for file in found(path): assert 'old_api' in read_file(file)['content'], file
terminal('cd src')
print(found('.'), found('..'))
";
    assert_eq!(
        rig.session().ok(code),
        "['src/deep/one.py', 'src/two.py'] ['src/deep/one.py', 'src/two.py'] ['~/three.py'] \
         ['../work/src/deep/one.py', '../work/src/two.py']\n\
         ['deep/one.py', 'two.py'] ['../src/deep/one.py', '../src/two.py']\n"
    );
}

fn names_that_are_no_utf8_go_to_the_other_tools(rig: &Rig) {
    let code = r#"
import os
from hermes_tools import patch, read_file, search_files, write_file
os.mkdir(b'd\xff')
for name in b'caf\xe9', b'd\xff/in', b'x\xfe', b'x\xff': open(name, 'w').write('needle')
found = [match['path'] for match in search_files('needle')['matches']]
for path in found[:2]:
    print(read_file(path).get('content'), patch(path, 'needle', 'found').get('success'), search_files('found', path=path)['total_count'])
print(write_file(found[0], 'new').get('dirs_created'), open(b'caf\xe9').read(), sorted(os.listdir(b'.')))
import hermes_tools
for name, arguments in {'read_file': {}, 'write_file': {'content': 'x'}, 'patch': {'old_string': 'n', 'new_string': 'm'}, 'search_files': {'pattern': 'n'}}.items():
    errors = {hermes_tools._call(name, {'path': path, **arguments}).get('error', '') for path in found[2:]}
    print([r'may be each of 2 names in ' + os.getcwd() in error and r"b'x\xfe', b'x\xff'; rename" in error for error in errors])
# A name that does hold the mark looks like the others too.
os.rename(b'x\xff', 'x\ufffd')
print('may be each of 2' in read_file('x\ufffd')['error'])
os.remove(b'x\xfe')
print(read_file('x\ufffd')['content'])"#;
    assert_eq!(
        rig.session().ok(code),
        "1|needle True 1\n1|needle True 1\n[] new [b'caf\\xe9', b'd\\xff', b'x\\xfe', b'x\\xff']\n[True]\n[True]\n[True]\n[True]\nTrue\n1|needle\n"
    );
}

fn what_is_the_sessions_own_is_not_found(rig: &Rig) {
    let code = r"
import os, hermes_tools
folder = os.path.dirname(os.path.dirname(hermes_tools.__file__))
above, name = os.path.split(folder)
found = [hermes_tools.search_files('import', path=above, file_glob='*.py', output_mode='files_only', limit=10000)['files']]
found.append(hermes_tools.search_files('*', target='files', path=above, limit=10000)['files'])
print([path for files in found for path in files if name in path], os.path.exists(hermes_tools.__file__))";
    assert_eq!(rig.session().ok(code), "[] True\n");
}

fn what_cannot_be_searched_says_so(rig: &Rig) {
    rig.file("config.yaml", "a");
    rig.file("image.png", b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00");
    let session = rig.session();
    session.ok("import os; os.mkfifo('fifo')");
    for (arguments, word) in [
        (json!({"pattern": "(a"}), "re.escape"),
        (json!({"pattern": "(?<=a)b"}), "look-around"),
        (json!({"pattern": "a\nb"}), "line break"),
        (json!({"pattern": "a", "path": "config.yml"}), "config.yaml"),
        (
            json!({"pattern": "a", "path": "config.yaml/x"}),
            "a part of the path is a file",
        ),
        (json!({"pattern": "a", "path": ""}), "empty"),
        (json!({"pattern": "a", "path": "fifo"}), "a named pipe"),
        (json!({"pattern": "a", "path": "image.png"}), "a PNG image"),
        (json!({"pattern": "a", "path": "/proc/self"}), "each process"),
        (json!({"pattern": "a", "file_glob": "{a"}), "file_glob"),
        (json!({"pattern": "a", "limit": 0}), "at least 1"),
    ] {
        let result = search(&session, &arguments);
        assert_eq!(result.as_object().unwrap().len(), 1, "{arguments}: {result}");
        assert!(
            result["error"].as_str().unwrap().contains(word),
            "{arguments}: {result}"
        );
    }
}

/// Root may read anything, so it is another user that searches; in a container there is none.
fn unreadable_folders_are_warned_of(rig: &Rig) {
    if rig.target.kind == Kind::Docker {
        return;
    }
    let Some(user) = rig.other_user() else {
        return;
    };
    rig.file("open/f", "word");
    rig.file("closed/f", "word");
    rig.file("shut", "word");
    for (path, bits) in [("open", 0o755), ("closed", 0o700), ("shut", 0o600), ("open/f", 0o644)] {
        std::fs::set_permissions(rig.work().join(path), std::fs::Permissions::from_mode(bits)).unwrap();
    }
    let code = "
from hermes_tools import read_file, search_files
found = search_files('word')
print([match['path'] for match in found['matches']], found['warnings'])
for path, bits in ('closed', 'mode 700,'), ('shut', 'mode 600,'), ('closed/f', 'enter the folder'):
    error = search_files('word', path=path)['error']
    print(error.startswith('cannot search') and bits in error and 'terminal()' in error, end=' ')
error = read_file('closed')['error']
print('is a folder' in error and 'no right to list it (mode 700,' in error)";
    let output = user.cli(rig, ["run", "-c", code]).through(user.prefix()).run();
    assert_eq!(
        output.stdout,
        "['open/f'] ['cannot search closed: this user has no right to', 'cannot search shut: this user has no right to']\nTrue True True True\n",
        "{output:?}"
    );
}

fn a_search_that_nobody_waits_for_ends(rig: &Rig) {
    rig.file("f", format!("{}c\n", "a".repeat(60)));
    let session = rig.session();
    // Python needs years for this one; the cell ends long before.
    let outcome = session.cell_for(
        2.0,
        "from hermes_tools import search_files\nprint(search_files('x(?:a|aa)+b|^(?:a|aa)+b$'))",
    );
    assert!(outcome.duration_seconds < HANG.as_secs_f64(), "{outcome:?}");
    assert_eq!(search(&session, &json!({"pattern": "c$"}))["total_count"], 1);
}

fn many_searches_side_by_side(rig: &Rig) {
    for number in 0..30 {
        rig.file(&format!("f{number}"), format!("word{number}\n"));
    }
    let code = "
from concurrent.futures import ThreadPoolExecutor
from hermes_tools import search_files
with ThreadPoolExecutor(8) as pool:
    found = list(pool.map(lambda number: search_files('word%d$' % number)['matches'], range(30)))
print([[match['path'] for match in matches] for matches in found] == [['f%d' % number] for number in range(30)])";
    assert_eq!(rig.session().ok(code), "True\n");
}

fn a_worktree_that_leads_to_a_pipe_holds_up_nobody(rig: &Rig) {
    let printed = rig.session().ok("
import os
from hermes_tools import search_files
for name in ('b', 'c', 'g', 'h/info'): os.makedirs(name)
for name in 'bc':
    with open(name + '/f', 'w') as file: file.write('needle')
    with open(name + '/.git', 'w') as file: file.write('gitdir: ../%s\\n' % {'b': 'g', 'c': 'h'}[name])
os.mkfifo('g/commondir')
os.mkfifo('h/info/exclude')
for name in 'bc':
    found = search_files('needle', path=name)
    print(found.get('total_count') == 1 or 'pipe' in str(found))");
    assert_eq!(printed, "True\nTrue\n");
}
