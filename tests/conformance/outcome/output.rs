//! What comes back of what a script printed.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use talaria_broker::outcome::{Outcome, Status};

use crate::rig::Rig;
use crate::{Case, cases};

pub(crate) const CASES: &[Case] = cases![
    the_spill_holds_everything_and_read_file_serves_it,
    a_short_stdout_is_not_cut,
    progress_bars_show_their_last_state,
    escape_sequences_are_stripped,
    secret_values_are_masked,
    bytes_that_are_no_text_are_replaced,
    any_locale_will_do,
    everything_is_in_the_order_in_which_it_happened,
];

fn spill(outcome: &Outcome) -> &Path {
    assert_eq!(outcome.stdout_truncated, Some(true), "{:?}", outcome.error);
    Path::new(outcome.stdout_spill_path.as_deref().unwrap())
}

fn the_spill_holds_everything_and_read_file_serves_it(rig: &Rig) {
    let session = rig.session();
    let outcome = session.cell("for i in range(20000): print('line', i)\nprint('end', end='')");
    let path = spill(&outcome);
    let kept = std::fs::read_to_string(path).unwrap();
    let whole: String = (0..20_000).map(|i| format!("line {i}\n")).collect();
    assert!(
        kept.starts_with(&whole) && kept.trim_end().ends_with("end"),
        "{}",
        kept.len()
    );
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(
        path.parent().unwrap().metadata().unwrap().permissions().mode() & 0o777,
        0o700
    );
    assert!(path.starts_with(rig.home()), "{path:?}");
    let code = format!(
        "from hermes_tools import read_file\npage = read_file({:?}, offset=10001, limit=2)\nprint(page['content'])",
        path.display().to_string()
    );
    assert_eq!(session.ok(&code).trim(), "10001|line 10000\n10002|line 10001");
}

fn a_short_stdout_is_not_cut(rig: &Rig) {
    let session = rig.session();
    let outcome = session.cell("print('x' * 49999)");
    assert_eq!((outcome.output.len(), outcome.stdout_truncated), (50_000, None));
    assert_eq!(outcome.stdout_bytes_omitted, None);
    assert_eq!(outcome.stdout_spill_path, None);
    let outcome = session.cell("print('x' * 50000)");
    assert_eq!(outcome.stdout_truncated, Some(true));
    let spills = std::fs::read_dir(spill(&outcome).parent().unwrap()).unwrap().count();
    assert_eq!(spills, 1);
}

fn progress_bars_show_their_last_state(rig: &Rig) {
    let session = rig.session();
    assert_eq!(
        session.ok("for i in range(101): print(f'\\r{i}%', end='')\nprint()"),
        "100%\n"
    );
    assert_eq!(session.ok("print('a\\r\\nb')"), "a\r\nb\n");
    let outcome = session.cell("print('x' * 60000)\nfor i in range(3): print(f'\\r{i} of 3', end='')");
    assert!(outcome.output.ends_with("\n2 of 3"));
    let kept = std::fs::read_to_string(spill(&outcome)).unwrap();
    assert!(kept.contains("\r0 of 3\r1 of 3\r2 of 3"));
}

fn escape_sequences_are_stripped(rig: &Rig) {
    let session = rig.session();
    let printed = session
        .ok("print('\\x1b[1;31mred\\x1b[0m \\x1b]0;title\\x07\\x1b]8;;http://x\\x1b\\\\link\\x1b]8;;\\x1b\\\\ end')");
    assert_eq!(printed, "red link end\n");
    let printed = session.ok("import os, time\nos.write(1, b'a\\x1b[3')\ntime.sleep(0.1)\nos.write(1, b'1mb\\n')");
    assert_eq!(printed, "ab\n");
    let outcome = session.cell("raise ValueError('\\x1b[31mred')");
    assert_eq!(outcome.error.as_deref(), Some("ValueError: red"));
}

fn secret_values_are_masked(rig: &Rig) {
    let secret = "hunter2-hunter2";
    let session = rig.session_with(|options| rig.among(options, [("SHOP_API_KEY", secret)]));
    let code = format!("print('{secret}'[:0] + 'x', '{secret}')\nimport sys\nprint('{secret}', file=sys.stderr)");
    let outcome = session.cell(code);
    assert!(!format!("{outcome:?}").contains(secret), "{outcome:#?}");
    assert!(outcome.output.starts_with("x "));
    // In pieces, in the error, and in the spill.
    let outcome = session.cell("import os, time\nos.write(1, b'hunter2-')\ntime.sleep(0.1)\nos.write(1, b'hunter2\\n')\nraise ValueError('hunter2-' + 'hunter2')");
    assert!(!format!("{outcome:?}").contains(secret), "{outcome:#?}");
    let outcome = session.cell("print('y' * 60000)\nprint('hunter2-' + 'hunter2')");
    assert!(!outcome.output.contains(secret));
    assert!(!std::fs::read_to_string(spill(&outcome)).unwrap().contains(secret));
    // What a script writes elsewhere is its own.
    session.ok("open('f.txt', 'w').write('hunter2-' + 'hunter2')");
    assert_eq!(std::fs::read_to_string(rig.work().join("f.txt")).unwrap(), secret);
}

fn bytes_that_are_no_text_are_replaced(rig: &Rig) {
    let session = rig.session();
    let outcome =
        session.cell("import sys\nsys.stdout.buffer.write(bytes(range(256)))\nsys.stdout.flush()\nprint('end')");
    assert_eq!((outcome.status, outcome.stdout_bytes_total), (Status::Success, 260));
    assert!(outcome.output.contains("ABC") && outcome.output.contains('\u{fffd}') && outcome.output.ends_with("end\n"));
    for code in [
        "print('\\ud800')",
        "import sys\nsys.stdout.write('a\\udcff')\nprint('', '\\ud800', file=sys.stderr)",
    ] {
        let outcome = session.cell(code);
        assert_eq!(outcome.status, Status::Success, "{outcome:#?}");
        assert!(outcome.output.len() > 1);
    }
    assert_eq!(session.ok("print('a\\0b')").trim_end().len(), 3);
    assert_eq!(
        session.ok("import os\nos.write(1, '\u{e4}'.encode()[:1])\nos.write(1, '\u{e4}\\n'.encode()[1:])"),
        "\u{e4}\n"
    );
}

fn any_locale_will_do(rig: &Rig) {
    for locale in ["C", "POSIX", "de_DE.ISO-8859-1", "nonsense", ""] {
        let session = rig.session_with(|options| {
            rig.among(options, [("LANG", locale), ("LC_ALL", locale)]);
        });
        rig.file("text.txt", "\u{e4}\u{4e2d}");
        let code = "print('\u{e4}\u{4e2d}', open('text.txt').read())\nimport subprocess, sys\nsubprocess.run([sys.executable, '-c', 'print(\"\\u00e4\")'])";
        assert_eq!(session.ok(code), "\u{e4}\u{4e2d} \u{e4}\u{4e2d}\n\u{e4}\n", "{locale}");
        session.close();
    }
}

fn everything_is_in_the_order_in_which_it_happened(rig: &Rig) {
    let code = "import ctypes, os, subprocess, sys
libc = ctypes.CDLL(None)
for i in range(3):
    print('print', i, end=' ')
    subprocess.run(['echo', 'child', str(i)])
    os.write(1, b'write\\n')
    libc.printf(b'printf\\n')
    sys.stdout.write('stdout ')
    os.system('echo system')
    sys.stdout.buffer.write(b'buffer\\n')
    libc.puts(b'puts')
";
    let one = |i: u32| format!("print {i} child {i}\nwrite\nprintf\nstdout system\nbuffer\nputs\n");
    let expected: String = (0..3).map(one).collect();
    let session = rig.session();
    for _ in 0..2 {
        assert_eq!(session.ok(code), expected);
    }
}
