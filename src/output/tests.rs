//! The stages together: what a collector makes of whole streams.
#![expect(clippy::unwrap_used, reason = "a failing test may panic")]

use std::fs;
use std::path::Path;

use proptest::prelude::*;

use super::*;

const SECRET: &str = "hunter-22";

fn limits(max_stdout_bytes: usize, max_spill_bytes: u64) -> OutputLimits {
    OutputLimits {
        max_stdout_bytes,
        max_stderr_bytes: 10,
        max_spill_bytes,
    }
}

fn collector(dir: &Path, limits: OutputLimits) -> Collector {
    let masker = Masker::new([SECRET.to_owned()]).unwrap();
    Collector::new(limits, dir.to_owned(), masker)
}

/// Runs chunks of stdout through a collector; also returns what a live stream showed.
fn collect(dir: &Path, limits: OutputLimits, chunks: &[&[u8]]) -> (Collected, String) {
    let mut collector = collector(dir, limits);
    let mut live = String::new();
    for chunk in chunks {
        live.push_str(&collector.push(Stream::Stdout, chunk));
    }
    let collected = collector.finish();
    live.push_str(&collected.live_rest.0);
    (collected, live)
}

fn file_count(dir: &Path) -> usize {
    fs::read_dir(dir).map_or(0, Iterator::count)
}

/// The spill file's content, and the outcome with the path replaced, to compare two runs.
fn without_path(collected: &Collected) -> (String, String) {
    let path = collected
        .truncation
        .as_ref()
        .and_then(|truncation| truncation.spill_path.as_ref());
    match path {
        Some(path) => (
            fs::read_to_string(path).unwrap(),
            collected.stdout.replace(path.to_str().unwrap(), "PATH"),
        ),
        None => (String::new(), collected.stdout.clone()),
    }
}

#[test]
fn nothing_printed_is_nothing() {
    let temp = tempfile::tempdir().unwrap();
    let (collected, live) = collect(temp.path(), limits(10, 100), &[]);
    assert_eq!(collected.stdout, "");
    assert_eq!(collected.stdout_bytes_total, 0);
    assert_eq!(collected.truncation, None);
    assert_eq!(live, "");
}

#[test]
fn a_long_output_shows_both_ends_and_names_the_file() {
    let temp = tempfile::tempdir().unwrap();
    let (collected, live) = collect(temp.path(), limits(10, 100), &[b"0123456789", b"abcdef"]);
    let truncation = collected.truncation.unwrap();
    let path = truncation.spill_path.unwrap();
    assert_eq!(
        collected.stdout,
        format!(
            "0123\n[… 6 bytes left out; all of it is in {}, page through it with read_file …]\nabcdef",
            path.display()
        )
    );
    assert_eq!(truncation.bytes_omitted, 6);
    assert_eq!(collected.stdout_bytes_total, 16);
    assert_eq!(fs::read_to_string(path).unwrap(), "0123456789abcdef");
    assert_eq!(live, "0123456789abcdef");
}

#[test]
fn a_progress_bar_that_collapses_leaves_no_file() {
    let temp = tempfile::tempdir().unwrap();
    let bar: String = (0..=100).map(|n| format!("\r{n:3}%")).collect();
    let (collected, live) = collect(temp.path(), limits(10, 1000), &[bar.as_bytes(), b"\nok\n"]);
    assert_eq!(collected.stdout, "100%\nok\n");
    assert_eq!(collected.truncation, None);
    assert_eq!(live, format!("{bar}\nok\n"));
    assert_eq!(file_count(temp.path()), 0);
}

#[test]
fn the_spill_holds_progress_bars_as_they_were_drawn() {
    let temp = tempfile::tempdir().unwrap();
    let (collected, _) = collect(temp.path(), limits(10, 1000), &[b"1%\r2%\nlong enough\n"]);
    let (spill, shown) = without_path(&collected);
    assert_eq!(spill, "1%\r2%\nlong enough\n");
    assert!(shown.starts_with("2%\nl\n["), "{shown}");
}

#[test]
fn secrets_and_escapes_reach_neither_outcome_nor_file() {
    let temp = tempfile::tempdir().unwrap();
    let text = format!("\x1b[1m{SECRET}\x1b[0m {} hunter\x1b[K-22 end", "x".repeat(50));
    let chunks: Vec<&[u8]> = text.as_bytes().chunks(3).collect();
    let (collected, live) = collect(temp.path(), limits(20, 1000), &chunks);
    let (spill, shown) = without_path(&collected);
    for text in [&spill, &shown, &live] {
        assert!(!text.contains(SECRET) && !text.contains('\x1b'), "{text}");
        assert!(text.starts_with("*** x") && text.ends_with("*** end"), "{text}");
    }
}

#[test]
fn stderr_has_its_own_limit_and_no_file() {
    let temp = tempfile::tempdir().unwrap();
    let mut collector = collector(temp.path(), limits(50, 100));
    collector.push(Stream::Stdout, b"out");
    collector.push(Stream::Stderr, b"0123456789");
    collector.push(Stream::Stderr, b"abcdef");
    let collected = collector.finish();
    assert_eq!(collected.stdout, "out");
    assert_eq!(collected.stderr, "0123\n[… 6 bytes left out …]\nabcdef");
    assert_eq!(collected.stdout_bytes_total, 3);
    assert_eq!(collected.truncation, None);
    assert_eq!(file_count(temp.path()), 0);
}

#[test]
fn past_the_cap_the_tail_is_still_the_real_tail() {
    let temp = tempfile::tempdir().unwrap();
    let chunk = [b'x'; 1000];
    let mut chunks: Vec<&[u8]> = vec![&chunk; 20];
    chunks.push(b"the end");
    let (collected, _) = collect(temp.path(), limits(10, 5000), &chunks);
    let (spill, shown) = without_path(&collected);
    assert!(spill.starts_with(&"x".repeat(5000)));
    assert!(
        spill[5000..].starts_with("\n[… this file ends here"),
        "{}",
        &spill[5000..]
    );
    assert!(shown.ends_with("he end"), "{shown}");
    assert!(
        shown.contains("the first 5,000 bytes of the text are in PATH"),
        "{shown}"
    );
    assert_eq!(collected.stdout_bytes_total, 20_007);
}

#[test]
fn without_a_spill_the_outcome_says_why() {
    let temp = tempfile::tempdir().unwrap();
    let in_the_way = temp.path().join("file");
    fs::write(&in_the_way, "").unwrap();
    let (collected, _) = collect(&in_the_way, limits(10, 100), &[b"0123456789abcdef"]);
    let truncation = collected.truncation.unwrap();
    assert_eq!((truncation.bytes_omitted, truncation.spill_path), (6, None));
    assert!(collected.stdout.contains("could not be kept: the directory"));
    assert!(collected.stdout.starts_with("0123\n[") && collected.stdout.ends_with("]\nabcdef"));
}

#[test]
fn lost_output_is_counted_and_followed_by_its_tail() {
    let temp = tempfile::tempdir().unwrap();
    let mut collector = collector(temp.path(), limits(20, 100));
    assert_eq!(collector.push(Stream::Stdout, b"begin hunter"), "begin ");
    // Both halves of the secret at the edges of the loss are masked.
    let live = collector.skip(Stream::Stdout, 1000, b"er-22 tail");
    assert_eq!(live, "***\n[… 1,000 bytes left out …]\n*** tail");
    assert_eq!(collector.push(Stream::Stdout, b"!\n"), "!\n");
    let collected = collector.finish();
    let (spill, shown) = without_path(&collected);
    assert_eq!(collected.stdout_bytes_total, 12 + 1000 + 10 + 2);
    assert_eq!(collected.truncation.unwrap().bytes_omitted, 1001);
    assert!(
        shown.starts_with("begin **\n[… 1,001 bytes left out; the first 9 bytes"),
        "{shown}"
    );
    assert!(shown.ends_with("]\n*** tail!\n"), "{shown}");
    assert!(spill.starts_with("begin ***\n[… this file ends here"), "{spill}");
    assert!(!spill.contains("tail"), "{spill}");
}

#[test]
fn a_skip_of_nothing_is_a_push() {
    let temp = tempfile::tempdir().unwrap();
    let mut collector = collector(temp.path(), limits(20, 100));
    collector.push(Stream::Stdout, b"caf\xc3");
    assert_eq!(collector.skip(Stream::Stdout, 0, b"\xa9\n"), "é\n");
    let collected = collector.finish();
    assert_eq!(collected.stdout, "café\n");
    assert_eq!(collected.truncation, None);
}

#[test]
fn eight_mebibytes_in_one_line() {
    let temp = tempfile::tempdir().unwrap();
    let line = "0123456789abcdef".repeat(512 * 1024) + "\n";
    let chunks: Vec<&[u8]> = line.as_bytes().chunks(64 * 1024).collect();
    let (collected, _) = collect(temp.path(), limits(50_000, 64 << 20), &chunks);
    let (spill, shown) = without_path(&collected);
    assert!(spill == line, "the spill is not the line");
    assert!(shown.starts_with(&line[..20_000]));
    assert!(shown.ends_with(&line[line.len() - 30_000..]));
    assert_eq!(collected.truncation.unwrap().bytes_omitted, line.len() as u64 - 50_000);
}

/// Streams made of what the stages look out for.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let part = prop_oneof![
        4 => "[a-c]{1,6}".prop_map(String::into_bytes),
        2 => prop::sample::select(vec!["\r", "\n", "\r\n", "\x1b[1m", "\x1b]0;t", "\x07", "é", "€", "😀", SECRET])
            .prop_map(|text| text.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 1..3),
        1 => (1..SECRET.len()).prop_map(|end| SECRET.as_bytes()[..end].to_vec()),
    ];
    prop::collection::vec(part, 0..20).prop_map(|parts| parts.concat())
}

proptest! {
    #[test]
    fn any_cut_gives_the_same_outcome_and_spill(
        bytes in bytes(),
        size in 1_usize..9,
        limit in 0_usize..60,
        cap in 1_u64..80,
    ) {
        let temp = tempfile::tempdir().unwrap();
        let limits = limits(limit, cap);
        let chunks: Vec<&[u8]> = bytes.chunks(size).collect();
        let (cut, live) = collect(temp.path(), limits, &chunks);
        let (whole, whole_live) = collect(temp.path(), limits, &[&bytes]);
        prop_assert_eq!(&live, &whole_live);
        prop_assert!(!live.contains(SECRET));

        let (spill, shown) = without_path(&cut);
        prop_assert_eq!((&spill, &shown), (&without_path(&whole).0, &without_path(&whole).1));
        prop_assert_eq!(cut.stdout_bytes_total, bytes.len() as u64);

        let full = clean_text(&bytes, &Masker::new([SECRET.to_owned()]).unwrap());
        let Some(truncation) = cut.truncation else {
            prop_assert_eq!(&cut.stdout, &full);
            prop_assert!(full.len() <= limit);
            prop_assert_eq!(file_count(temp.path()), 0);
            return Ok(());
        };
        prop_assert!(full.len() > limit);
        let marker_start = shown.find("[… ").unwrap();
        let marker_end = shown.find(" …]\n").unwrap() + " …]\n".len();
        let (head, tail) = (&shown[..marker_start], &shown[marker_end..]);
        // The marker may have brought a line break with it.
        let head = if full.starts_with(head) { head } else { &head[..head.len() - 1] };
        prop_assert!(full.starts_with(head) && full.ends_with(tail));
        let shown_bytes = (head.len() + tail.len()) as u64;
        // The marker's line break may look like the one that comes next in the text.
        let borrowed = truncation.bytes_omitted + shown_bytes - full.len() as u64;
        prop_assert!(borrowed <= 1);
        prop_assert!(shown_bytes - borrowed <= limit as u64);
        if live.len() as u64 <= cap {
            prop_assert_eq!(spill, live);
        } else {
            let kept = live.floor_char_boundary(usize::try_from(cap).unwrap());
            prop_assert!(spill.starts_with(&live[..kept]));
            prop_assert!(spill[kept..].starts_with("\n[… this file ends here"));
        }
    }
}
