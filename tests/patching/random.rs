//! The bodies of the fuzz targets, run briefly: a small corpus, and what comes of it by chance.

use std::time::{Duration, Instant};

use proptest::prelude::Rng;
use proptest::test_runner::{RngAlgorithm, TestRng};

use crate::bodies;

/// How long each goes on; on any machine something is tried. `TALARIA_TEST_FUZZ_SECONDS` gives them longer.
const TIME: Duration = Duration::from_secs(2);
const LEAST: usize = 300;

const PATCHES: &[&[u8]] = &[
    b"a\nb\nc\n\0*** Begin Patch\n*** Update File: f\n@@ a\n-b\n+x\n*** End Patch\n",
    b"a\r\nb\n\0*** Update File: f\n*** Move to: h\n@@ -1,2 +1,2 @@\n a\n-b\n+x\n+y\n*** End of File\n*** Delete File: g",
    b"x\n\0```\n*** Begin Patch\n*** Add File: h\n+1\n\n+2\n*** Move File: g -> i\n*** End Patch\n```",
    b"class A:\n  def f():\n    pass\n\0*** Update File: f\n@@ class A\n@@ def f\n-pass\n+return\n",
    b"\xff\xfea\0*** Update File: f\n+x",
];
const TEXTS: &[&[u8]] = &[
    b"one two\nthree\n\0two\nthree\0x\r\ny",
    b"a  \r\n\tb\r\nc\0a\nb\n\0A\nb\nB\n",
    b"say \xe2\x80\x9chi\xe2\x80\x9d\xe2\x80\xa6\n\0\"hi\"...\0bye",
    b"caf\xe9 \xc3\xa9\n\0\xc3\xa9\0e",
    b"aXaXa\0aXa\0b",
];
const ARGUMENTS: &[&[u8]] = &[
    br#"{"a": 5, "b": [1, "x"], "c": "x"}"#,
    b"{\"a\": null, \"z\": 1}\0{\"properties\": {\"a\": {\"type\": [\"null\", 5], \"enum\": 3}}, \"required\": \"a\"}",
    b"{\"a\": 1e400}\0{\"properties\": {\"a\": {\"type\": \"integer\", \"minimum\": \"1\"}}}",
];

/// Pieces that mean something to one of them.
const PIECES: &[&[u8]] = &[
    b"\n",
    b"\r\n",
    b"\0",
    b"*** ",
    b"@@",
    b"+",
    b"-",
    b" ",
    b"\t",
    b"    ",
    b"*** End Patch\n",
    b"*** Update File: f\n",
    b"*** Add File: ",
    b"\xef\xbb\xbf",
    b"\xff\xfe",
    b"\xe2\x80\xa6",
    b"\xc3\xa9",
    b"\xe9",
    b"a",
    b"b\n",
    b"{}",
    b"\"a\":",
    b"1e9",
];

fn run(body: fn(&[u8]), corpus: &[&[u8]]) {
    let mut random = TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]);
    let mut below = move |end: usize| random.next_u32() as usize % end.max(1);
    corpus.iter().for_each(|input| body(input));
    let longer = std::env::var("TALARIA_TEST_FUZZ_SECONDS")
        .ok()
        .and_then(|text| text.parse().ok());
    let end = Instant::now() + longer.map_or(TIME, Duration::from_secs);
    let mut tried = 0;
    while tried < LEAST || Instant::now() < end {
        let mut input = corpus[below(corpus.len())].to_vec();
        for _ in 0..=below(6) {
            let at = below(input.len() + 1);
            let piece = PIECES[below(PIECES.len())];
            match below(5) {
                0 => drop(input.splice(at..at, piece.iter().copied())),
                1 => drop(input.drain(at..(at + below(8)).min(input.len()))),
                2 => {
                    let from = below(input.len() + 1);
                    let copied = input[from..(from + below(30)).min(input.len())].to_vec();
                    drop(input.splice(at..at, copied));
                }
                3 if at < input.len() => input[at] = below(256) as u8,
                _ => {
                    let other = corpus[below(corpus.len())];
                    input.extend_from_slice(&other[below(other.len())..]);
                }
            }
        }
        body(&input);
        tried += 1;
    }
}

#[test]
fn any_patch_has_an_answer() {
    run(bodies::v4a, PATCHES);
}

#[test]
fn any_text_is_found_or_not() {
    run(bodies::replace, TEXTS);
}

#[test]
fn any_arguments_fit_or_not() {
    run(bodies::arguments, ARGUMENTS);
}
