//! `search_files` and `patch`, on files that the scripts make there.

use serde_json::{Value, json};

use super::bench::Bench;
use super::case::{Case, Checked, case};
use super::check::{contains, equal, holds};

pub(super) const CASES: &[Case] = &[
    case!(a_search_has_all_keys_in_every_mode).in_folder(),
    case!(names_are_found_newest_first).in_folder(),
    case!(what_is_ignored_hidden_or_binary_is_left_out).in_folder(),
    case!(pages_of_matches_join_to_the_whole).in_folder(),
    case!(what_cannot_be_searched_says_so).in_folder(),
    case!(a_replacement_has_all_keys).in_folder(),
    case!(what_is_not_unique_or_not_there_is_an_error).in_folder(),
    case!(indentation_and_line_ends_are_forgiven_where_it_is_unique).in_folder(),
    case!(a_patch_changes_several_files).in_folder(),
    case!(a_patch_changes_all_files_or_none).in_folder(),
    case!(encoding_ends_and_mode_stay).in_folder(),
];

fn keys(value: &Value) -> Vec<&str> {
    value
        .as_object()
        .into_iter()
        .flat_map(|object| object.keys().map(String::as_str))
        .collect()
}

/// A result that is an error of these words and nothing else.
fn fails(result: &Value, words: &[&str]) -> Checked {
    equal("the keys of a failure", &keys(result), &["error"])?;
    contains("the error", result["error"].as_str().unwrap_or_default(), words)
}

async fn v4a(bench: &Bench, text: &str) -> Result<Value, super::case::Unmet> {
    let arguments = json!({"mode": "patch", "patch": format!("*** Begin Patch\n{text}\n*** End Patch")});
    bench.call("patch", &arguments).await
}

async fn replace(bench: &Bench, path: &str, old: &str, new: &str) -> Result<Value, super::case::Unmet> {
    let arguments = json!({"path": path, "old_string": old, "new_string": new});
    bench.call("patch", &arguments).await
}

async fn a_search_has_all_keys_in_every_mode(bench: &Bench) -> Checked {
    bench
        .ok("import os\nos.mkdir('src')\nopen('src/a.py', 'w').write('import os\\n# caf\u{e9}\\nprint(os.name)\\n')\nopen('src/b.md', 'w').write('os\\n')")
        .await?;
    for (arguments, expected) in [
        (
            json!({"pattern": r"\bos\b", "file_glob": "*.py", "context": 1}),
            json!({
                "matches": [
                    {"path": "src/a.py", "line": 1, "content": "import os", "before": [], "after": ["# caf\u{e9}"]},
                    {"path": "src/a.py", "line": 3, "content": "print(os.name)", "before": ["# caf\u{e9}"], "after": []},
                ],
                "files": [], "counts": {}, "total_count": 2, "truncated": false,
            }),
        ),
        (
            json!({"pattern": "os", "output_mode": "files_only"}),
            json!({"matches": [], "files": ["src/a.py", "src/b.md"], "counts": {}, "total_count": 2, "truncated": false}),
        ),
        (
            json!({"pattern": "os", "output_mode": "count"}),
            json!({"matches": [], "files": [], "counts": {"src/a.py": 2, "src/b.md": 1}, "total_count": 3, "truncated": false}),
        ),
        (
            json!({"pattern": "nowhere"}),
            json!({"matches": [], "files": [], "counts": {}, "total_count": 0, "truncated": false}),
        ),
    ] {
        let found = bench.call("search_files", &arguments).await?;
        equal(&format!("what {arguments} finds"), &found, &expected)?;
    }
    Ok(())
}

async fn names_are_found_newest_first(bench: &Bench) -> Checked {
    let code = "import os, json\nfrom hermes_tools import search_files\n\
                for age, name in enumerate(('new.py', 'older.py', 'oldest.py', 'other.md')):\n    open(name, 'w').close(); os.utime(name, (1e9 - age * 100,) * 2)\n\
                print(json.dumps(search_files('*.py', target='files')))";
    equal(
        "what it finds",
        &bench.value(code).await?,
        &json!({"matches": [], "files": ["new.py", "older.py", "oldest.py"], "counts": {}, "total_count": 3, "truncated": false}),
    )
}

async fn what_is_ignored_hidden_or_binary_is_left_out(bench: &Bench) -> Checked {
    bench
        .ok(
            "import os\nfor path in ('a.txt', 'a.log', '.env', 'build/a.txt', 'deep/er/build/a.txt'):
    os.makedirs(os.path.dirname(path) or '.', exist_ok=True); open(path, 'w').write('word')
open('binary.txt', 'wb').write(b'word\\0')
open('.gitignore', 'w').write('*.log\\nbuild/\\n')
os.mkdir('.git')",
        )
        .await?;
    let mut asked = json!({"pattern": "word", "output_mode": "files_only"});
    let found = bench.call("search_files", &asked).await?;
    equal("files found", &found["files"], &json!(["a.txt"]))?;
    asked["path"] = "build".into();
    let found = bench.call("search_files", &asked).await?;
    equal(
        "files found in a folder that is named",
        &found["files"],
        &json!(["build/a.txt"]),
    )
}

async fn pages_of_matches_join_to_the_whole(bench: &Bench) -> Checked {
    let code = "from hermes_tools import search_files
with open('many', 'w') as file: file.writelines('line %d\\n' % n for n in range(5000))
found, offset = [], 0
while True:
    page = search_files('line', limit=2000, offset=offset)
    found += page['matches']; offset += len(page['matches'])
    if not page['truncated']: break
print(len(found), page['total_count'], [m['line'] for m in found] == list(range(1, 5001)), found[4999]['content'])
whole = search_files('line', limit=5000)
print(whole['matches'] == found, whole['truncated'])";
    bench.prints(code, "5000 5000 True line 4999\nTrue False\n").await
}

async fn what_cannot_be_searched_says_so(bench: &Bench) -> Checked {
    fails(&bench.call("search_files", &json!({"pattern": "(x"})).await?, &["(x"])?;
    fails(
        &bench
            .call("search_files", &json!({"pattern": "x", "path": "nowhere"}))
            .await?,
        &["nowhere"],
    )?;
    let wrong = json!({"pattern": "x", "output_mode": "wrong"});
    fails(&bench.call("search_files", &wrong).await?, &["output_mode"])
}

async fn a_replacement_has_all_keys(bench: &Bench) -> Checked {
    bench.ok("open('f', 'w').write('a\\nb\\nc\\n')").await?;
    equal(
        "what it says",
        &replace(bench, "f", "b", "x").await?,
        &json!({
            "success": true,
            "diff": "--- a/f\n+++ b/f\n@@ -1,3 +1,3 @@\n a\n-b\n+x\n c\n",
            "files_modified": ["f"], "files_created": [], "files_deleted": [],
        }),
    )?;
    bench.prints("print(open('f').read())", "a\nx\nc\n\n").await
}

async fn what_is_not_unique_or_not_there_is_an_error(bench: &Bench) -> Checked {
    bench.ok("open('f', 'w').write('one\\ntwo\\none\\n\\none\\n')").await?;
    fails(
        &replace(bench, "f", "one", "x").await?,
        &["3 times", "lines 1, 3, 5", "replace_all"],
    )?;
    fails(&replace(bench, "f", "one\nthree\n", "x").await?, &["not found"])?;
    fails(&replace(bench, "f", "one", "one").await?, &["the same"])?;
    fails(&replace(bench, "none", "one", "x").await?, &["does not exist"])?;
    bench
        .prints("print(open('f').read())", "one\ntwo\none\n\none\n\n")
        .await?;
    let all = json!({"path": "f", "old_string": "one", "new_string": "1", "replace_all": true});
    equal("success", &bench.call("patch", &all).await?["success"], &true)?;
    bench.prints("print(open('f').read())", "1\ntwo\n1\n\n1\n\n").await
}

async fn indentation_and_line_ends_are_forgiven_where_it_is_unique(bench: &Bench) -> Checked {
    bench
        .ok("open('a.py', 'w', newline='').write('class A:\\r\\n    def f(self):\\r\\n        return 1\\r\\n')")
        .await?;
    let new = "def f(self):\n    return 2\n";
    let result = replace(bench, "a.py", "def f(self):\n    return 1\n", new).await?;
    holds("success", result["success"] == true, &result)?;
    let expected = "b'class A:\\r\\n    def f(self):\\r\\n        return 2\\r\\n'\n";
    bench.prints("print(open('a.py', 'rb').read())", expected).await
}

const SEVERAL: &str = "*** Update File: a
@@
 one
-two
+zwei
*** Add File: new/b
+1
+2
*** Delete File: c
*** Update File: d
*** Move to: moved/d
-old
+new";

async fn a_patch_changes_several_files(bench: &Bench) -> Checked {
    bench
        .ok("for name, text in (('a', 'one\\ntwo\\n'), ('c', 'x'), ('d', 'old\\n')): open(name, 'w').write(text)")
        .await?;
    let result = v4a(bench, SEVERAL).await?;
    holds("success", result["success"] == true, &result)?;
    let code = "import os\nprint(open('a').read(), open('new/b').read(), open('moved/d').read(), os.path.exists('c'), os.path.exists('d'))";
    bench.prints(code, "one\nzwei\n 1\n2\n new\n False False\n").await
}

async fn a_patch_changes_all_files_or_none(bench: &Bench) -> Checked {
    bench
        .ok("for name, text in (('a', 'one\\ntwo\\n'), ('c', 'x'), ('d', 'other\\n')): open(name, 'w').write(text)")
        .await?;
    fails(&v4a(bench, SEVERAL).await?, &["d", "not found"])?;
    let code = "import os\nprint(sorted(os.listdir('.')), open('a').read(), open('c').read(), open('d').read())";
    bench.prints(code, "['a', 'c', 'd'] one\ntwo\n x other\n\n").await
}

async fn encoding_ends_and_mode_stay(bench: &Bench) -> Checked {
    bench
        .ok("import os\nopen('latin', 'wb').write(b'caf\\xe9\\r\\nold\\r\\nend')\nos.chmod('latin', 0o750)\nopen('bom', 'wb').write(b'\\xef\\xbb\\xbfold\\n')")
        .await?;
    for path in ["latin", "bom"] {
        let result = replace(bench, path, "old", "new").await?;
        holds("success", result["success"] == true, &result)?;
    }
    let code = "print(open('latin', 'rb').read(), oct(os.stat('latin').st_mode & 0o7777), open('bom', 'rb').read())";
    let code = format!("import os\n{code}");
    bench
        .prints(&code, "b'caf\\xe9\\r\\nnew\\r\\nend' 0o750 b'\\xef\\xbb\\xbfnew\\n'\n")
        .await
}
