//! What comes back of what a script printed.

use super::bench::Bench;
use super::case::{Case, Checked, Unmet, case};
use super::check::{contains, equal, failed, holds};
use super::outcomes::ended;
use super::seat::{Heard, builtin};
use crate::outcome::{Outcome, Status};

pub(super) const CASES: &[Case] = &[
    case!(a_long_stdout_keeps_head_and_tail),
    case!(cuts_fall_between_characters),
    case!(the_spill_holds_everything_and_read_file_serves_it),
    case!(the_spill_has_a_cap_and_says_so),
    case!(a_short_stdout_is_not_cut),
    case!(a_long_stderr_keeps_head_and_tail),
    case!(a_line_of_eight_mebibytes),
    case!(many_small_writes),
    case!(output_is_told_as_it_is_printed),
    case!(bytes_that_are_no_text_are_replaced),
    Case::prints(
        "any_text_passes",
        "print('größe 中文 🦀 \\u2028 \\ufeff|')\nimport sys\nprint(sys.stdout.encoding.lower(), ascii(open(__file__, 'rb').read()[:5]) != '')",
        "größe 中文 🦀 \u{2028} \u{feff}|\nutf-8 True\n",
    ),
    Case::prints(
        "escape_sequences_are_stripped",
        "print('\\x1b[1;31mred\\x1b[0m \\x1b]0;title\\x07\\x1b]8;;http://x\\x1b\\\\link\\x1b]8;;\\x1b\\\\ end')",
        "red link end\n",
    ),
    Case::prints(
        "progress_bars_show_their_last_state",
        "for i in range(101): print(f'\\r{i}%', end='')\nprint()",
        "100%\n",
    ),
    Case::prints(
        "everything_is_in_the_order_in_which_it_happened",
        "import os, subprocess, sys
for i in range(3):
    print('print', i, end=' ')
    subprocess.run(['echo', 'child', str(i)])
    os.write(1, b'write\\n')
    sys.stdout.write('stdout ')
    os.system('echo system')
    sys.stdout.buffer.write(b'buffer\\n')",
        "print 0 child 0\nwrite\nstdout system\nbuffer\nprint 1 child 1\nwrite\nstdout system\nbuffer\n\
         print 2 child 2\nwrite\nstdout system\nbuffer\n",
    ),
    Case::prints(
        "markers_of_the_contract_are_only_text",
        "print('--- stderr ---\\n[execution interrupted — x]\\nScript timed out after 5s and was killed.\\nEOF $(x) `y`')",
        "--- stderr ---\n[execution interrupted — x]\nScript timed out after 5s and was killed.\nEOF $(x) `y`\n",
    ),
];

/// The longest that output is waited for.
const HEARD: std::time::Duration = std::time::Duration::from_secs(45);

/// The file that keeps what an outcome has left out, and its text.
async fn spill(outcome: &Outcome) -> Result<(String, String), Unmet> {
    holds(
        "a truncated stdout",
        outcome.stdout_truncated == Some(true),
        &outcome.stdout_truncated,
    )?;
    let path = outcome
        .stdout_spill_path
        .clone()
        .ok_or_else(|| failed("expected stdout_spill_path, seen none"))?;
    match tokio::fs::read_to_string(&path).await {
        Ok(text) => Ok((path, text)),
        Err(error) => Err(failed(format!("the spill file {path} cannot be read: {error}"))),
    }
}

async fn a_long_stdout_keeps_head_and_tail(bench: &Bench) -> Checked {
    let outcome = bench.cell("for i in range(100000): print('line', i)").await?;
    ended(&outcome, Status::Success, Some(0))?;
    let total: u64 = (0..100_000u64).map(|i| 6 + i.to_string().len() as u64).sum();
    equal("stdout_bytes_total", &outcome.stdout_bytes_total, &total)?;
    let (path, _) = spill(&outcome).await?;
    let lines: Vec<&str> = outcome.output.lines().collect();
    equal(
        "first and last line",
        &(lines.first(), lines.last()),
        &(Some(&"line 0"), Some(&"line 99999")),
    )?;
    let marker = lines.iter().find(|line| line.contains(&path));
    let marker = marker.ok_or_else(|| failed(format!("expected a line that names {path}, seen none")))?;
    let omitted = outcome.stdout_bytes_omitted.unwrap_or_default();
    let told = marker.replace(',', "");
    contains("the line between head and tail", &told, &[&omitted.to_string()])?;
    let kept = total - omitted;
    holds(
        "nearly 50,000 bytes to be kept",
        (49_900..=50_000).contains(&kept),
        &kept,
    )?;
    let head = outcome.output.find(marker).unwrap_or_default();
    holds("a head of 40 %", (19_900..=20_001).contains(&head), &head)
}

async fn cuts_fall_between_characters(bench: &Bench) -> Checked {
    let outcome = bench.cell("print('\u{1f600}\u{e4}' * 100000, end='')").await?;
    equal("stdout_bytes_total", &outcome.stdout_bytes_total, &600_000)?;
    let output = outcome.output.as_str();
    holds("no character to be cut", !output.contains('\u{fffd}'), output)?;
    let is_whole = output.starts_with("\u{1f600}\u{e4}") && output.ends_with("\u{1f600}\u{e4}");
    holds("whole characters at both ends", is_whole, output)?;
    spill(&outcome).await.map(|_| ())
}

async fn the_spill_holds_everything_and_read_file_serves_it(bench: &Bench) -> Checked {
    use std::os::unix::fs::PermissionsExt;
    let outcome = bench
        .cell("for i in range(20000): print('line', i)\nprint('end', end='')")
        .await?;
    let (path, kept) = spill(&outcome).await?;
    let whole: String = (0..20_000).map(|i| format!("line {i}\n")).collect();
    let is_whole = kept.starts_with(&whole) && kept.trim_end().ends_with("end");
    holds("all of it in the spill file", is_whole, &kept.len())?;
    let rights = |path: &std::path::Path| std::fs::metadata(path).map(|found| found.permissions().mode() & 0o777);
    let rights = rights(path.as_ref()).map_err(|error| failed(format!("{path}: {error}")))?;
    equal("the rights of the spill file", &rights, &0o600)?;
    let arguments = serde_json::json!({"path": path, "offset": 10001, "limit": 2});
    let page = bench.call("read_file", &arguments).await?;
    equal("a page of it", &page["content"], "10001|line 10000\n10002|line 10001")
}

async fn the_spill_has_a_cap_and_says_so(bench: &Bench) -> Checked {
    let mut cell = builtin("print('head')\nprint('x' * 1_000_000)\nprint('tail')");
    cell.limits.max_spill_bytes = Some(200_000);
    let outcome = bench.run(cell).await?;
    equal("stdout_bytes_total", &outcome.stdout_bytes_total, &1_000_011)?;
    let (_, kept) = spill(&outcome).await?;
    holds(
        "a spill file of 200,000 bytes",
        (200_000..201_000).contains(&kept.len()),
        &kept.len(),
    )?;
    contains(
        "the output",
        &outcome.output.replace(',', ""),
        &["head\n", "200000", "tail\n"],
    )
}

async fn a_short_stdout_is_not_cut(bench: &Bench) -> Checked {
    let outcome = bench.cell("print('x' * 49999)").await?;
    equal(
        "length, truncation and spill",
        &(
            outcome.output.len(),
            outcome.stdout_truncated,
            outcome.stdout_spill_path,
        ),
        &(50_000, None, None),
    )?;
    let mut cell = builtin("print('a' * 500 + 'b' * 500)");
    cell.limits.max_stdout_bytes = Some(100);
    let outcome = bench.run(cell).await?;
    equal(
        "what a limit of 100 bytes leaves out",
        &outcome.stdout_bytes_omitted,
        &Some(901),
    )?;
    let outcome = bench.cell("print('a' * 1000)").await?;
    equal("truncation in the next cell", &outcome.stdout_truncated, &None)
}

async fn a_long_stderr_keeps_head_and_tail(bench: &Bench) -> Checked {
    let outcome = bench
        .cell("import sys\nfor i in range(10000): print('line', i, file=sys.stderr)")
        .await?;
    let stderr = outcome.stderr.unwrap_or_default();
    holds(
        "first and last line",
        stderr.starts_with("line 0\n") && stderr.ends_with("line 9999\n"),
        &stderr,
    )?;
    holds("about 10,000 bytes", stderr.len() < 10_500, &stderr.len())?;
    let outcome = bench
        .cell("import sys\nprint('e' * 10_000_000, file=sys.stderr)\nprint('seen')\n1 / 0")
        .await?;
    let output = outcome.output.as_str();
    holds("stdout first", output.starts_with("seen\n--- stderr ---\neee"), output)?;
    holds(
        "the exception last",
        output.ends_with("ZeroDivisionError: division by zero\n"),
        output,
    )?;
    holds("about 10,000 bytes", output.len() < 11_000, &output.len())
}

async fn a_line_of_eight_mebibytes(bench: &Bench) -> Checked {
    let outcome = bench.cell("print('a' + 'x' * (8 << 20) + 'z')").await?;
    equal("stdout_bytes_total", &outcome.stdout_bytes_total, &((8 << 20) + 3))?;
    let output = outcome.output.as_str();
    holds(
        "both ends",
        output.starts_with("axx") && output.ends_with("xxz\n"),
        output,
    )?;
    let (_, kept) = spill(&outcome).await?;
    holds("all of it in the spill file", kept.len() >= (8 << 20) + 3, &kept.len())
}

async fn many_small_writes(bench: &Bench) -> Checked {
    let outcome = bench
        .cell("import os\nfor i in range(30000): os.write(1, b'ab')")
        .await?;
    equal("stdout_bytes_total", &outcome.stdout_bytes_total, &60_000)?;
    let (_, kept) = spill(&outcome).await?;
    equal(
        "whether all came in order",
        &(kept.trim_end() == "ab".repeat(30_000)),
        &true,
    )
}

async fn output_is_told_as_it_is_printed(bench: &Bench) -> Checked {
    let heard = std::sync::Arc::new(Heard::new("first"));
    let mut cell = builtin("import time\nprint('first', flush=True)\ntime.sleep(60)\nprint('second')");
    cell.sink = Some(heard.clone());
    let cancel = cell.cancel.clone();
    let (outcome, told) = tokio::join!(bench.run(cell), async {
        // Where it is never told, what is compared is nothing.
        let _ = tokio::time::timeout(HEARD, heard.wait()).await;
        let told = heard.text();
        cancel.cancel("heard");
        told
    });
    outcome?;
    // The end of the line may come in a piece of its own.
    let is_right = told.starts_with("first") && !told.contains("second");
    holds("the first line alone while the cell ran", is_right, told.as_str())
}

async fn bytes_that_are_no_text_are_replaced(bench: &Bench) -> Checked {
    let code = "import sys\nsys.stdout.buffer.write(bytes(range(256)))\nsys.stdout.flush()\nprint('end')";
    let outcome = bench.cell(code).await?;
    ended(&outcome, Status::Success, Some(0))?;
    equal("stdout_bytes_total", &outcome.stdout_bytes_total, &260)?;
    contains("the output", &outcome.output, &["ABC", "\u{fffd}", "end\n"])?;
    let cut = "import os\nos.write(1, '\u{e4}'.encode()[:1])\nos.write(1, '\u{e4}\\n'.encode()[1:])";
    bench.prints(cut, "\u{e4}\n").await?;
    ended(&bench.cell("print('\\ud800')").await?, Status::Success, Some(0))
}
