//! `patch` in both modes.

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use serde_json::{Value, json};

use crate::rig::{Kind, Rig, TestSession};
use crate::{Case, cases};

pub(crate) const CASES: &[Case] = cases![
    calls_side_by_side_wait_for_each_other,
    keys_are_always_the_same,
    one_text_for_another,
    what_is_not_unique_or_not_there_says_where,
    a_patch_changes_several_files,
    all_files_or_none,
    encoding_ends_mode_and_links_stay,
    a_link_is_deleted_whatever_is_behind_it,
    what_cannot_be_patched_says_why_and_changes_nothing,
    arguments_that_do_not_belong_together,
    patches_side_by_side_lose_nothing,
    nothing_is_left_beside,
    names_of_one_file_are_changed_apart,
    a_file_that_is_a_mount_is_patched_too,
];

fn patch(session: &TestSession, arguments: &Value) -> Value {
    let arguments = json!(arguments.to_string()).to_string();
    session.value(&format!(
        "import json\nfrom hermes_tools import patch\nprint(json.dumps(patch(**json.loads({arguments}))))"
    ))
}

fn replace(session: &TestSession, path: &str, old: &str, new: &str) -> Value {
    patch(session, &json!({"path": path, "old_string": old, "new_string": new}))
}

fn v4a(session: &TestSession, text: &str) -> Value {
    patch(
        session,
        &json!({"mode": "patch", "patch": format!("*** Begin Patch\n{text}\n*** End Patch")}),
    )
}

#[track_caller]
fn fails(result: &Value, words: &[&str]) {
    let keys: Vec<&String> = result.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["error"], "{result}");
    for word in words {
        assert!(result["error"].as_str().unwrap().contains(word), "{word}: {result}");
    }
}

fn text(rig: &Rig, name: &str) -> String {
    String::from_utf8(std::fs::read(rig.work().join(name)).unwrap()).unwrap()
}

fn names(rig: &Rig) -> Vec<String> {
    let entries = std::fs::read_dir(rig.work()).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn keys_are_always_the_same(rig: &Rig) {
    let session = rig.session();
    rig.file("f", "a\nb\nc\n");
    assert_eq!(
        replace(&session, "f", "b", "x"),
        json!({
            "success": true,
            "diff": "--- a/f\n+++ b/f\n@@ -1,3 +1,3 @@\n a\n-b\n+x\n c\n",
            "files_modified": ["f"],
            "files_created": [],
            "files_deleted": [],
        })
    );
    assert_eq!(
        v4a(&session, "*** Add File: g\n+1\n*** Delete File: f"),
        json!({
            "success": true,
            "diff": "--- /dev/null\n+++ b/g\n@@ -0,0 +1 @@\n+1\n--- a/f\n+++ /dev/null\n@@ -1,3 +0,0 @@\n-a\n-x\n-c\n",
            "files_modified": [],
            "files_created": ["g"],
            "files_deleted": ["f"],
        })
    );
    fails(&replace(&session, "f", "a", "b"), &["does not exist"]);
    fails(
        &v4a(&session, "*** Delete File: f"),
        &["does not exist", "line 2 of the patch"],
    );
}

fn one_text_for_another(rig: &Rig) {
    let session = rig.session();
    rig.file(
        "a.py",
        "class A:\n    def f(self):\n        return 1\n\n    def g(self):\n        return 1\n",
    );
    // Exactly, and shifted.
    replace(
        &session,
        "a.py",
        "def f(self):\n        return 1",
        "def f(self):\n        return 2",
    );
    replace(
        &session,
        "a.py",
        "def g(self):\n    return 1\n",
        "def g(self):\n    if x:\n        return 3\n",
    );
    assert_eq!(
        text(rig, "a.py"),
        "class A:\n    def f(self):\n        return 2\n\n    def g(self):\n        if x:\n            return 3\n"
    );
    let all = patch(
        &session,
        &json!({"path": "a.py", "old_string": "return", "new_string": "yield", "replace_all": true}),
    );
    assert_eq!(all["success"], true, "{all}");
    assert_eq!(text(rig, "a.py").matches("yield").count(), 2);
    // Paths are those of the other tools.
    std::fs::write(rig.home().join("h"), "x").unwrap();
    assert_eq!(replace(&session, "~/h", "x", "y")["files_modified"], json!(["~/h"]));
    session.ok("from hermes_tools import terminal\nterminal('mkdir sub; cd sub; echo 1 >s')");
    assert_eq!(replace(&session, "s", "1", "")["success"], true);
    assert_eq!(text(rig, "sub/s"), "\n");
}

fn what_is_not_unique_or_not_there_says_where(rig: &Rig) {
    let session = rig.session();
    rig.file("f", "one\ntwo\none\n\none\n");
    fails(
        &replace(&session, "f", "one", "x"),
        &["3 times", "lines 1, 3, 5", "replace_all"],
    );
    fails(
        &replace(&session, "f", "one\nthree\n", "x"),
        &["not found", "1|one", "2|two", "\"three\""],
    );
    fails(&replace(&session, "f", "", "x"), &["empty"]);
    fails(&replace(&session, "f", "one", "one"), &["the same"]);
    fails(
        &v4a(&session, "*** Update File: f\n@@\n two\n-one\n+1\n@@\n-nothing\n+x"),
        &["f: hunk 2 (line 7 of the patch)", "not found"],
    );
    fails(
        &v4a(&session, "*** Update File: f\n-one\n+1"),
        &["hunk 1", "several places (lines 1, 3, 5)"],
    );
    assert_eq!(text(rig, "f"), "one\ntwo\none\n\none\n");
}

const SEVERAL: &str = "*** Update File: a
@@ def g
-  x
+  y
*** Add File: new/deep/b
+1
+2
*** Delete File: c
*** Update File: d
*** Move to: moved/d
-old
+new";

fn a_patch_changes_several_files(rig: &Rig) {
    let session = rig.session();
    rig.file("a", "def f\n  x\ndef g\n  x\n");
    rig.file("c", "gone\n");
    let d = rig.file("d", "old");
    std::fs::set_permissions(d, std::fs::Permissions::from_mode(0o751)).unwrap();
    let result = v4a(&session, SEVERAL);
    assert_eq!(
        (
            &result["files_modified"],
            &result["files_created"],
            &result["files_deleted"]
        ),
        (&json!(["a"]), &json!(["new/deep/b", "moved/d"]), &json!(["c", "d"])),
        "{result}"
    );
    assert_eq!(text(rig, "a"), "def f\n  x\ndef g\n  y\n");
    assert_eq!(
        (text(rig, "new/deep/b"), text(rig, "moved/d")),
        ("1\n2\n".into(), "new".into())
    );
    assert_eq!(rig.work().join("moved/d").metadata().unwrap().mode() & 0o777, 0o751);
    assert_eq!(names(rig), ["a", "moved", "new"]);
    // As a script makes it.
    session.ok("open('by script', 'w').close()");
    let mode = |name: &str| rig.work().join(name).metadata().unwrap().mode();
    assert_eq!(mode("new/deep/b"), mode("by script"));
}

fn all_files_or_none(rig: &Rig) {
    let session = rig.session();
    rig.file("a", "def f\n  x\ndef g\n  x\n");
    rig.file("c", "gone\n");
    for (d, words) in [
        (Some("other"), vec!["d: hunk 1", "1|other"]),
        (None, vec!["d does not exist", "line 10"]),
    ] {
        let d = d.map(|content| rig.file("d", content));
        fails(&v4a(&session, SEVERAL), &words);
        if let Some(d) = d {
            std::fs::remove_file(d).unwrap();
        }
        assert_eq!(names(rig), ["a", "c"]);
        assert_eq!(text(rig, "a"), "def f\n  x\ndef g\n  x\n");
    }
    // What shows only when it is done: there is no such folder.
    let deep = format!(
        "*** Update File: a\n-def f\n+def h\n*** Add File: x/{}\n+1",
        "n".repeat(300)
    );
    fails(&v4a(&session, &deep), &["too long"]);
    assert_eq!(names(rig), ["a", "c"]);
    assert_eq!(text(rig, "a"), "def f\n  x\ndef g\n  x\n");
}

fn encoding_ends_mode_and_links_stay(rig: &Rig) {
    let session = rig.session();
    let utf16 = |text: &str| -> Vec<u8> {
        std::iter::once(0xfeff)
            .chain(text.encode_utf16())
            .flat_map(u16::to_le_bytes)
            .collect()
    };
    for (before, after) in [
        (b"a\r\nold\r\n".to_vec(), b"a\r\nnew\r\n\xc3\xa9\r\n".to_vec()),
        (b"\xef\xbb\xbfa\nold".to_vec(), b"\xef\xbb\xbfa\nnew\n\xc3\xa9".to_vec()),
        (b"\xe4\nold\n".to_vec(), b"\xe4\nnew\n\xe9\n".to_vec()),
        (b"a\r\nold\nb\r\n".to_vec(), b"a\r\nnew\r\n\xc3\xa9\nb\r\n".to_vec()),
        (utf16("\u{1f600}\r\nold"), utf16("\u{1f600}\r\nnew\r\n\u{e9}")),
    ] {
        rig.file("f", &before);
        let result = replace(&session, "f", "old", "new\n\u{e9}");
        assert_eq!(std::fs::read(rig.work().join("f")).unwrap(), after, "{result}");
    }
    let script = rig.file("script.sh", "old\n");
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o750)).unwrap();
    symlink("script.sh", rig.work().join("link")).unwrap();
    let before = script.metadata().unwrap();
    assert_eq!(v4a(&session, "*** Update File: link\n-old\n+new")["success"], true);
    assert!(rig.work().join("link").is_symlink());
    assert_eq!(text(rig, "script.sh"), "new\n");
    let after = script.metadata().unwrap();
    assert_eq!(after.mode(), before.mode());
    assert_eq!((after.uid(), after.gid()), (before.uid(), before.gid()));
}

fn a_link_is_deleted_whatever_is_behind_it(rig: &Rig) {
    rig.file("f", "old\n");
    rig.file("image", b"\x89PNG\r\n\x1a\n\x00\x00a");
    rig.file("sub/g", "a\n");
    let links = [
        ("to-file", "f"),
        ("to-nothing", "no/where"),
        ("to-folder", "sub"),
        ("to-image", "image"),
        ("to-device", "/dev/null"),
        ("to-itself", "to-itself"),
        ("to-below-a-file", "f/x"),
    ];
    for (name, to) in links {
        symlink(to, rig.work().join(name)).unwrap();
    }
    symlink("../f", rig.work().join("sub/to-file")).unwrap();
    let session = rig.session();
    let all = || {
        let deleted = links.iter().map(|(name, _)| format!("*** Delete File: {name}\n"));
        deleted.collect::<String>() + "*** Delete File: to-folder/../sub/to-file\n*** Update File: f\n-old\n+new\n"
    };
    let before = names(rig);
    // All or none.
    let failed = v4a(&session, &(all() + "*** Add File: sub\n+x"));
    fails(&failed, &["is a folder"]);
    fails(&v4a(&session, "*** Update File: to-folder\n-a\n+b"), &["is a folder"]);
    fails(&v4a(&session, "*** Delete File: to-folder/"), &["is a folder"]);
    assert_eq!((names(rig), text(rig, "f")), (before, "old\n".into()));
    let result = v4a(&session, &all());
    assert_eq!(result["success"], true, "{result}");
    for (name, to) in links {
        let told = format!("deleted file mode 120000\n--- a/{name}\n+++ /dev/null\n@@ -1 +0,0 @@\n-{to}\n");
        assert!(result["diff"].as_str().unwrap().contains(&told), "{name}: {result}");
    }
    assert_eq!(names(rig), ["f", "image", "sub"]);
    assert_eq!((text(rig, "f"), text(rig, "sub/g")), ("new\n".into(), "a\n".into()));
    assert!(!rig.work().join("sub/to-file").is_symlink());
    // Through a link that leads to nothing a file is made, as it is written through one.
    symlink("made", rig.work().join("link")).unwrap();
    assert_eq!(v4a(&session, "*** Add File: link\n+x")["success"], true);
    assert_eq!((names(rig).len(), text(rig, "made")), (5, "x\n".into()));
}

fn what_cannot_be_patched_says_why_and_changes_nothing(rig: &Rig) {
    rig.file("f", "a\n");
    rig.file("sub/g", "a\n");
    rig.file("indented", "a\nb\n");
    rig.file("image", b"\x89PNG\r\n\x1a\n\x00\x00a");
    symlink("f", rig.work().join("link")).unwrap();
    symlink("circle", rig.work().join("circle")).unwrap();
    let session = rig.session();
    for (path, words) in [
        ("g", vec!["does not exist"]),
        ("sub", vec!["is a folder", "g"]),
        ("sub/", vec!["is a folder"]),
        ("f/x", vec!["a part of the path is a file"]),
        ("", vec!["empty"]),
        ("a\0b", vec!["NUL"]),
        ("circle", vec!["circle"]),
        ("image", vec!["PNG"]),
        ("/dev/null", vec!["device"]),
        ("/dev/stdin", vec!["each process"]),
    ] {
        fails(&replace(&session, path, "a", "b"), &words);
    }
    for (patch, words) in [
        ("*** Add File: f\n+x", vec!["f exists already", "line 2"]),
        ("*** Add File: sub\n+x", vec!["is a folder"]),
        ("*** Add File: f/x\n+x", vec!["a part of the path is a file"]),
        ("*** Delete File: none", vec!["does not exist", "line 2"]),
        ("*** Update File: sub/g\n*** Move to: f", vec!["f exists already"]),
        ("*** Move File: link -> other", vec!["symlink"]),
        ("*** Move File: f -> ./sub/../f", vec!["moved to itself"]),
        (
            "*** Update File: f\n-a\n+b\n*** Update File: ./link\n-a\n+c",
            vec!["stands twice", "lines 2 (f) and 5"],
        ),
        ("*** Add File: new\n+1\n*** Add File: ./new\n+2", vec!["stands twice"]),
        (
            "*** Add File: n\n+1\n*** Add File: n/m\n+2",
            vec!["n/m (line 4", "would lie in n,"],
        ),
        (
            "*** Add File: /proc/none/x\n+1",
            vec!["/proc/none/x", "nothing can be made in /proc"],
        ),
        ("*** Add File: /proc/none\n+1", vec!["nothing can be made in /proc"]),
        (
            "*** Update File: indented\n     a\n-    b\n+   c",
            vec!["line 1", "\"   c\"", "indentation"],
        ),
        ("*** Update File: f\n+b", vec!["nothing says where"]),
        ("*** Rename File: f", vec!["line 2", "is unknown"]),
        ("", vec!["names no file"]),
    ] {
        fails(&v4a(&session, patch), &words);
    }
    assert_eq!(names(rig), ["circle", "f", "image", "indented", "link", "sub"]);
    assert_eq!((text(rig, "f"), text(rig, "sub/g")), ("a\n".into(), "a\n".into()));
}

fn arguments_that_do_not_belong_together(rig: &Rig) {
    let session = rig.session();
    rig.file("f", "a\n");
    for (arguments, words) in [
        (
            json!({}),
            vec!["\"path\" is missing", "takes path, old_string and new_string"],
        ),
        (
            json!({"path": "f", "old_string": "a"}),
            vec!["\"new_string\" is missing"],
        ),
        (json!({"mode": "patch"}), vec!["needs the argument patch"]),
        (
            json!({"mode": "patch", "patch": "x", "old_string": "a"}),
            vec!["belong to mode"],
        ),
        (
            json!({"path": "f", "old_string": "a", "new_string": "b", "patch": "x"}),
            vec!["belongs to mode"],
        ),
        (json!({"mode": "other"}), vec!["one of \"replace\", \"patch\""]),
        (
            json!({"path": "f", "old_string": "a", "new_string": "b", "replace_all": "yes"}),
            vec!["must be boolean"],
        ),
    ] {
        fails(&patch(&session, &arguments), &words);
    }
    // What can only be meant in one way needs no mode.
    let only = json!({"patch": "*** Update File: f\n-a\n+b"});
    assert_eq!(patch(&session, &only)["success"], true);
    let code =
        "from hermes_tools import patch\nprint(patch('f', 'b', 'c')['success'], patch('f', 'c', 'd', True)['success'])";
    assert_eq!(session.ok(code), "True True\n");
}

fn patches_side_by_side_lose_nothing(rig: &Rig) {
    let lines: Vec<String> = (0..24).map(|number| format!("line {number:02};\n")).collect();
    rig.file("f", lines.concat());
    let code = "
from concurrent.futures import ThreadPoolExecutor
from hermes_tools import patch
def one(number):
    if number % 2:
        return patch('f', 'line %02d;' % number, 'done %02d;' % number)
    return patch(mode='patch', patch='*** Update File: f\\n-line %02d;\\n+done %02d;' % (number, number))
with ThreadPoolExecutor(8) as pool: results = list(pool.map(one, range(24)))
text = open('f').read()
for number, result in enumerate(results):
    landed = 'done %02d;' % number in text
    assert landed == ('error' not in result), result
    assert landed or 'meanwhile' in result['error'], result
print(sum('error' not in result for result in results) > 8, text.count('line') + text.count('done'))
";
    assert_eq!(rig.session().ok(code), "True 24\n");
    assert_eq!(names(rig), ["f"]);
}

fn nothing_is_left_beside(rig: &Rig) {
    let session = rig.session();
    rig.file("f", "a\n");
    let left = rig.file(".talaria-patch-0123", "left by a process that was killed");
    let old = std::time::SystemTime::now() - std::time::Duration::from_secs(600);
    std::fs::File::options()
        .write(true)
        .open(left)
        .unwrap()
        .set_modified(old)
        .unwrap();
    replace(&session, "f", "a", "b");
    assert_eq!(names(rig), ["f"]);
}

/// Nothing can be renamed onto a mount. Engines give each container a file of this kind.
fn names_of_one_file_are_changed_apart(rig: &Rig) {
    rig.file("one", "a\n");
    for name in ["two", "gone"] {
        std::fs::hard_link(rig.work().join("one"), rig.work().join(name)).unwrap();
    }
    symlink("one", rig.work().join("link")).unwrap();
    let session = rig.session();
    let all =
        "*** Update File: one\n-a\n+b\n*** Update File: two\n-a\n+c\n*** Delete File: gone\n*** Delete File: link";
    let result = v4a(&session, all);
    assert_eq!(result["files_deleted"], json!(["gone", "link"]), "{result}");
    let diff = result["diff"].as_str().unwrap();
    let link = "deleted file mode 120000\n--- a/link\n+++ /dev/null\n@@ -1 +0,0 @@\n-one\n\\ No newline";
    assert!(diff.contains(link), "{diff}");
    assert_eq!((text(rig, "one"), text(rig, "two")), ("b\n".into(), "c\n".into()));
    assert_eq!(names(rig), ["one", "two"]);
}

fn a_file_that_is_a_mount_is_patched_too(rig: &Rig) {
    if rig.target.kind != Kind::Docker {
        return;
    }
    let session = rig.session();
    rig.file("other", "old\n");
    let code = "
from hermes_tools import patch, terminal
terminal('echo \"127.0.0.9 old\" >>/etc/hosts')
text = '*** Update File: %s\\n@@\\n-%s\\n+%s\\n'
both = text % ('/etc/hosts', '127.0.0.9 old', '127.0.0.9 new') + text % ('other', 'old', 'new')
print(patch(patch=both).get('files_modified'), terminal('tail -n 1 /etc/hosts; grep -c hosts /proc/mounts; ls -a /etc | grep talaria')['output'])
";
    assert_eq!(session.ok(code), "['/etc/hosts', 'other'] 127.0.0.9 new\n1\n\n");
    assert_eq!(text(rig, "other"), "new\n");
    for patch in ["*** Delete File: /etc/hosts", "*** Move File: /etc/hosts -> hosts"] {
        fails(&v4a(&session, patch), &["/etc/hosts", "is mounted there by itself"]);
    }
    assert_eq!(names(rig), ["other"]);
}

fn calls_side_by_side_wait_for_each_other(rig: &Rig) {
    let mut cell = talaria_broker::session::Cell::new(
        "
from concurrent.futures import ThreadPoolExecutor
from hermes_tools import patch
with open('lines', 'w') as file: file.writelines('line %d.\\n' % n for n in range(64))
with ThreadPoolExecutor(16) as pool:
    answers = list(pool.map(lambda n: patch('lines', 'line %d.' % n, 'LINE %d.' % n), range(64)))
print([answer for answer in answers if 'error' in answer])
with open('lines') as file: print(file.read() == ''.join('LINE %d.\\n' % n for n in range(64)))",
    );
    cell.limits.max_tool_calls = Some(100);
    let outcome = rig.session().run(cell);
    assert_eq!(outcome.output, "[]\nTrue\n", "{outcome:#?}");
}
