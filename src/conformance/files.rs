//! `read_file` and `write_file`, on files that the scripts make there.

use serde_json::{Value, json};

use super::bench::Bench;
use super::case::{Case, Checked, case};
use super::check::{contains, equal};

pub(super) const CASES: &[Case] = &[
    case!(keys_of_read_file_are_always_there).in_folder(),
    case!(keys_of_write_file_are_always_there).in_folder(),
    case!(pages_join_to_the_whole).in_folder(),
    case!(a_long_line_is_read_in_pieces).in_folder(),
    case!(what_cannot_be_read_says_why).in_folder(),
    case!(what_cannot_be_written_says_why_and_changes_nothing).in_folder(),
    case!(files_of_any_text_are_written_and_read_whole).in_folder(),
    case!(mode_bits_and_links_stay).in_folder(),
    Case::prints(
        "kernel_terminal_and_tools_see_one_file",
        "from hermes_tools import *
write_file('one.txt', 'by tool\\n')
print(open('one.txt').read(), terminal('cat one.txt')['output'], end='')
open('one.txt', 'w').write('by script\\n')
print(read_file('one.txt', raw=True)['content'], terminal('cat one.txt')['output'], end='')
terminal('echo by terminal >one.txt')
print(read_file('one.txt', raw=True)['content'], open('one.txt').read(), end='')",
        "by tool\n by tool\nby script\n by script\nby terminal\n by terminal\n",
    )
    .in_folder(),
    Case::prints(
        "the_same_file_is_read_as_often_as_asked",
        "from hermes_tools import read_file\nopen('f', 'w').write('the content\\n')\nprint(len({str(read_file('f')) for _ in range(40)}), read_file('f')['content'])",
        "1 1|the content\n",
    )
    .in_folder(),
];

fn keys(value: &Value) -> Vec<&str> {
    value
        .as_object()
        .into_iter()
        .flat_map(|object| object.keys().map(String::as_str))
        .collect()
}

async fn keys_of_read_file_are_always_there(bench: &Bench) -> Checked {
    bench
        .ok("open('f', 'w').write('a\\nb\\nc\\n'); open('empty', 'w').close()")
        .await?;
    equal(
        "a whole file",
        &bench.call("read_file", &json!({"path": "f"})).await?,
        &json!({"content": "1|a\n2|b\n3|c", "total_lines": 3, "file_size": 6, "truncated": false}),
    )?;
    equal(
        "an empty file",
        &bench.call("read_file", &json!({"path": "empty"})).await?,
        &json!({"content": "", "total_lines": 0, "file_size": 0, "truncated": false}),
    )?;
    let part = bench.call("read_file", &json!({"path": "f", "limit": 2})).await?;
    equal(
        "the keys of a part",
        &keys(&part),
        &[
            "content",
            "total_lines",
            "file_size",
            "truncated",
            "next_offset",
            "hint",
        ],
    )?;
    equal("the content of a part", &part["content"], "1|a\n2|b")?;
    let raw = bench.call("read_file", &json!({"path": "f", "raw": true})).await?;
    equal("the text alone", &raw["content"], "a\nb\nc\n")?;
    let past = bench.call("read_file", &json!({"path": "f", "offset": 100})).await?;
    equal(
        "a page past the end",
        &(&past["content"], &past["truncated"]),
        &(&json!(""), &json!(false)),
    )
}

async fn keys_of_write_file_are_always_there(bench: &Bench) -> Checked {
    let folder: String = bench.ok("import os; print(os.getcwd(), end='')").await?;
    equal(
        "what it says of a new file",
        &bench
            .call("write_file", &json!({"path": "a/b c/d.txt", "content": "ü"}))
            .await?,
        &json!({
            "bytes_written": 2,
            "dirs_created": [format!("{folder}/a"), format!("{folder}/a/b c")],
            "resolved_path": format!("{folder}/a/b c/d.txt"),
        }),
    )?;
    let again = bench
        .call("write_file", &json!({"path": "a/b c/d.txt", "content": ""}))
        .await?;
    equal("folders made the second time", &again["dirs_created"], &json!([]))?;
    bench
        .prints("import os; print(os.path.getsize('a/b c/d.txt'))", "0\n")
        .await
}

async fn pages_join_to_the_whole(bench: &Bench) -> Checked {
    let code = "
from hermes_tools import read_file
whole = ''.join('line %d ü\\n' % n for n in range(1, 5001))
with open('long', 'w', newline='') as file: file.write(whole)
def pages(**options):
    offset, parts = 1, []
    while True:
        page = read_file('long', offset=offset, **options)
        parts.append(page['content'])
        if not page['truncated']: return parts
        offset = page['next_offset']
print(''.join(pages(raw=True)) == whole, len(pages()), ''.join(pages(raw=True, limit=700)) == whole)
lines = '\\n'.join(pages(limit=999)).split('\\n')
print(lines == ['%d|%s' % (n, line) for n, line in enumerate(whole.splitlines(), 1)])
page = read_file('long', 4999)
print(page['content'], page['total_lines'], read_file('long', 10, 1)['content'])
for offset in (0, -1, 'x', '1:', ''):
    print('offset' in read_file('long', offset=offset)['error'], end=' ')
";
    let expected = format!(
        "True 3 True\nTrue\n4999|line 4999 ü\n5000|line 5000 ü 5000 10|line 10 ü\n{}",
        "True ".repeat(5)
    );
    bench.prints(code, &expected).await
}

async fn a_long_line_is_read_in_pieces(bench: &Bench) -> Checked {
    let code = "
import json
from hermes_tools import read_file
text = json.dumps({'key': ['ü' * 99 + str(n) for n in range(15000)]}, ensure_ascii=False)
open('one.json', 'w').write(text)
def pieces(**options):
    offset = 1
    while True:
        page = read_file('one.json', offset=offset, **options)
        yield page['content']
        if not page['truncated']: return
        offset = page['next_offset']
parts = list(pieces())
print(len(parts) > 1, max(len(part.encode()) for part in parts) <= 1 << 20)
print(''.join(part.partition('|')[2] for part in parts) == text, ''.join(pieces(raw=True)) == text)
";
    bench.prints(code, "True True\nTrue True\n").await
}

async fn what_cannot_be_read_says_why(bench: &Bench) -> Checked {
    bench
        .ok("import os\nopen('config.yaml', 'w').write('a')\nos.mkdir('folder')\nos.symlink('circle', 'circle')\nos.mkfifo('fifo')\nopen('image.png', 'wb').write(b'\\x89PNG\\r\\n\\x1a\\n\\0\\0\\0\\rIHDR\\0\\0')")
        .await?;
    for (path, word) in [
        ("config.yml", "config.yaml"),
        ("no/such/place", "does not exist"),
        ("folder", "folder"),
        ("", "empty"),
        ("circle", "circle"),
        ("config.yaml/x", "file"),
        ("image.png", "PNG"),
        ("fifo", "fifo"),
        ("/dev/zero", "a device"),
    ] {
        let result = bench.call("read_file", &json!({ "path": path })).await?;
        equal(&format!("the keys for {path:?}"), &keys(&result), &["error"])?;
        let error = result["error"].as_str().unwrap_or_default();
        contains(&format!("the error for {path:?}"), error, &[word])?;
    }
    Ok(())
}

async fn what_cannot_be_written_says_why_and_changes_nothing(bench: &Bench) -> Checked {
    bench
        .ok("import os\nopen('file', 'w').write('old')\nos.mkdir('folder')\nos.symlink('circle', 'circle')")
        .await?;
    let long = format!("sub/{}", "n".repeat(300));
    for (path, word) in [
        ("folder", "folder"),
        ("new/", "folder"),
        ("", "empty"),
        ("file/x", "file"),
        ("circle", "circle"),
        (&long, "too long"),
    ] {
        let result = bench
            .call("write_file", &json!({"path": path, "content": "new"}))
            .await?;
        equal(&format!("the keys for {path:?}"), &keys(&result), &["error"])?;
        let error = result["error"].as_str().unwrap_or_default();
        contains(&format!("the error for {path:?}"), error, &[word])?;
    }
    let code = "import os; print(sorted(os.listdir('.')), open('file').read())";
    bench.prints(code, "['circle', 'file', 'folder'] old\n").await
}

async fn files_of_any_text_are_written_and_read_whole(bench: &Bench) -> Checked {
    let code = r#"
from hermes_tools import read_file, write_file, terminal
every = "".join(chr(n) for n in range(1, 0x110000) if n != 10 and not 0xD800 <= n < 0xE000)
texts = ["", "x", "x\n", "\n", "\n\n", "a\r\nb\rc\n", "EOF\n$(x) `y` 'z' \"w\" \\ \\n\n--- stderr ---\n", "\ufeffbom", "no end\nat all", "🦀", every]
for number, text in enumerate(texts):
    name = "f %d.txt" % number
    written = write_file(name, text)
    raw = text.encode()
    with open(name, "rb") as file: seen = file.read()
    page = read_file(name, raw=True)
    shown = terminal("wc -c < '%s'" % name)["output"].strip()
    if seen != raw or written["bytes_written"] != len(raw) or page.get("content") != text or page["file_size"] != len(raw) or page["truncated"] or shown != str(len(raw)):
        print("differs", ascii(text[:30]), written, ascii(str(page)[:200]), shown)
print(len(texts))
"#;
    bench.prints(code, "11\n").await
}

async fn mode_bits_and_links_stay(bench: &Bench) -> Checked {
    let code = "import os\nfrom hermes_tools import write_file\nopen('script.sh', 'w').write('old')\nos.chmod('script.sh', 0o750)\nos.symlink('script.sh', 'link')\n\
                write_file('link', 'new')\nprint(os.path.islink('link'), open('script.sh').read(), oct(os.stat('script.sh').st_mode & 0o7777))\n\
                os.symlink('new target', 'to be')\nwrite_file('to be', 'made')\nprint(os.path.islink('to be'), open('new target').read())\n\
                open('by script', 'w').close()\nwrite_file('by tool', '')\nprint(os.stat('by tool').st_mode == os.stat('by script').st_mode)";
    bench.prints(code, "True new 0o750\nTrue made\nTrue\n").await
}
