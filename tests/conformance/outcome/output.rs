//! What comes back of what a script printed.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use talaria_broker::outcome::{Outcome, Status};

use crate::rig::Rig;
use crate::{Case, cases};

pub(crate) const CASES: &[Case] = cases![
    a_long_stdout_keeps_head_and_tail,
    cuts_fall_between_characters,
    the_spill_holds_everything_and_read_file_serves_it,
    the_spill_has_a_cap_and_says_so,
    a_long_stderr_keeps_head_and_tail,
    a_short_stdout_is_not_cut,
    limits_hold_for_one_cell,
    progress_bars_show_their_last_state,
    escape_sequences_are_stripped,
    secret_values_are_masked,
    bytes_that_are_no_text_are_replaced,
    any_locale_will_do,
    everything_is_in_the_order_in_which_it_happened,
    our_own_markers_are_only_text,
    nothing_printed_is_no_failure,
];

fn spill(outcome: &Outcome) -> &Path {
    assert_eq!(outcome.stdout_truncated, Some(true), "{:?}", outcome.error);
    Path::new(outcome.stdout_spill_path.as_deref().unwrap())
}

fn a_long_stdout_keeps_head_and_tail(rig: &Rig) {
    let session = rig.session();
    let outcome = session.cell("for i in range(100000): print('line', i)");
    assert_eq!(outcome.status, Status::Success);
    let lines: Vec<&str> = outcome.output.lines().collect();
    assert_eq!((lines[0], lines[lines.len() - 1]), ("line 0", "line 99999"));
    let total: u64 = (0..100_000u64).map(|i| 6 + i.to_string().len() as u64).sum();
    assert_eq!(outcome.stdout_bytes_total, total);
    let omitted = outcome.stdout_bytes_omitted.unwrap();
    let path = spill(&outcome).display().to_string();
    let marker = lines.iter().position(|line| line.contains(&path)).unwrap();
    let digits: String = lines[marker].split(" bytes").next().unwrap().replace(',', "");
    assert!(digits.ends_with(&omitted.to_string()), "{}", lines[marker]);
    let head = outcome.output.find(lines[marker]).unwrap();
    let tail = outcome.output.len() - head - lines[marker].len();
    assert!((19_900..=20_001).contains(&head), "{head}");
    assert!((29_900..=30_002).contains(&tail), "{tail}");
    // Only the line of the marker stands between what is kept.
    assert!(total - omitted <= 50_000 && total - omitted > 49_900, "{omitted}");
}

fn cuts_fall_between_characters(rig: &Rig) {
    let outcome = rig.session().cell("print('\u{1f600}\u{e4}' * 100000, end='')");
    assert!(!outcome.output.contains('\u{fffd}'));
    assert!(outcome.output.starts_with("\u{1f600}\u{e4}"));
    assert!(outcome.output.ends_with("\u{1f600}\u{e4}"));
    assert_eq!(outcome.stdout_bytes_total, 600_000);
    spill(&outcome);
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

fn the_spill_has_a_cap_and_says_so(rig: &Rig) {
    let session = rig.session_with(|options| options.limits.max_spill_bytes = 200_000);
    let outcome = session.cell("print('head')\nprint('x' * 1_000_000)\nprint('tail')");
    assert!(outcome.output.starts_with("head\n") && outcome.output.ends_with("tail\n"));
    assert_eq!(outcome.stdout_bytes_total, 1_000_011);
    let size = spill(&outcome).metadata().unwrap().len();
    assert!((200_000..201_000).contains(&size), "{size}");
    assert!(
        outcome.output.contains("200000") || outcome.output.contains("200,000"),
        "the cap is not said"
    );
}

fn a_long_stderr_keeps_head_and_tail(rig: &Rig) {
    let session = rig.session();
    let outcome = session.cell("import sys\nfor i in range(10000): print('line', i, file=sys.stderr)");
    let stderr = outcome.stderr.unwrap();
    assert!(stderr.starts_with("line 0\n") && stderr.ends_with("line 9999\n"));
    assert!(stderr.len() < 10_500, "{}", stderr.len());
    let outcome = session.cell("import sys\nprint('e' * 10_000_000, file=sys.stderr)\nprint('seen')\n1 / 0");
    assert!(
        outcome.output.starts_with("seen\n--- stderr ---\neee"),
        "{:.100}",
        outcome.output
    );
    assert!(outcome.output.ends_with("ZeroDivisionError: division by zero\n"));
    assert!(outcome.output.len() < 11_000);
    assert_eq!(outcome.stdout_truncated, None);
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

fn limits_hold_for_one_cell(rig: &Rig) {
    let session = rig.session();
    let mut cell = talaria_broker::session::Cell::new("print('a' * 500 + 'b' * 500)");
    cell.limits.max_stdout_bytes = Some(100);
    let outcome = session.run(cell);
    assert!(outcome.output.starts_with(&"a".repeat(40)) && outcome.output.ends_with(&format!("{}\n", "b".repeat(59))));
    assert_eq!(outcome.stdout_bytes_omitted, Some(901));
    assert_eq!(session.cell("print('a' * 1000)").stdout_truncated, None);
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

fn our_own_markers_are_only_text(rig: &Rig) {
    let session = rig.session();
    let text = "--- stderr ---\n[execution interrupted — x]\nScript timed out after 5s and was killed.\nEOF $(x) `y`";
    let outcome = session.cell(format!("print({text:?})"));
    assert_eq!((outcome.status, outcome.output), (Status::Success, format!("{text}\n")));
}

fn nothing_printed_is_no_failure(rig: &Rig) {
    let outcome = rig.session().cell("x = 1");
    assert_eq!((outcome.status, outcome.exit_code), (Status::Success, Some(0)));
    assert_eq!((outcome.output.as_str(), outcome.stdout_bytes_total), ("", 0));
    assert_eq!((outcome.stderr, outcome.error, outcome.hint), (None, None, None));
}
