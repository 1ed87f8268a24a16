//! Patterns in both dialects.

use proptest::prelude::*;
use talaria_broker::tools::{Pattern, Told};

use crate::rig::{Rig, lines, lines_with, ripgrep, runtime};

const LINES: &str = "\
alpha beta gamma
Alpha_1 = 23; // \u{e9}t\u{e9}
  \tindented\u{a0}line
\u{1c4}\u{1c5}\u{1c6} \u{3b1}\u{3b2}\u{3b3} \u{41f}\u{440}\u{438}\u{432}\u{435}\u{442}
a+b*c?d [x] (y) {z} \\ ^ $ | .
e\u{301}a \u{1f600}\u{200d}\u{1f600} \u{130}\u{131}\u{17f}\u{212a}

aaaaaaaaab
\u{663}\u{664} \u{2160}\u{b2} \u{203f} \u{e000} \u{fffd}
the end\r
";

#[test]
fn common_patterns_find_the_same_lines_as_ripgrep() {
    runtime().block_on(async {
        let rig = Rig::new().await;
        rig.file("text", LINES);
        rig.file("ascii", LINES.chars().filter(char::is_ascii).collect::<String>());
        let mut broken = LINES.as_bytes().to_vec();
        for at in [3, 30, 61, 90, 120, 150, 180] {
            broken[at] = 0xe2;
        }
        rig.file("broken", broken);
        let mut strays = Vec::new();
        for before in ["a", "\u{e9}", "\u{4e2d}", "\u{1f600}", " ", "\u{a0}", "\u{2028}"] {
            for count in 0..5 {
                for after in ["alpha", " ", "\u{e9}", "\u{80}"] {
                    let stray = vec![b"\x80\xbf"[count % 2]; count];
                    strays.extend([b"x ", before.as_bytes(), &stray, after.as_bytes(), b"\n"].concat());
                }
            }
        }
        rig.file("strays", strays);
        let is_checked = ripgrep(rig.root(), &["--version"]).is_some_and(|said| !said.is_empty());
        for pattern in [
            "alpha",
            "(?i)alpha",
            "(?i)k",
            "(?i)\u{e9}T",
            "ALPHA|end",
            r"\d+",
            r"\bbeta\b",
            r"\Bl",
            r"\Balpha",
            r"\B ",
            r"\B\u{e9}",
            r"\b\u{e9}$",
            r"\b{start-half}\u{e9}",
            r"\b{end}\S",
            r"\w+_\d",
            r"[[:alpha:]]+_",
            r"[[:^alpha:]]",
            r"\p{Greek}+",
            r"\p{Lu}\p{Ll}",
            r"\P{L}",
            r"\pN",
            r"[^a-z ]",
            r"^\s",
            r"\s$",
            r"\S$",
            r"^$",
            "$",
            "^",
            "",
            ".*",
            ".+",
            "^.$",
            "a{3,}b",
            "a{2}",
            "(a*)*b",
            "(?:a|aa)+$",
            "a*?b",
            "x*",
            r"\.",
            r"\\",
            r"\[x\]",
            r"[\]\[]",
            r"\x41",
            r"\x{1F600}",
            r"\u{e9}",
            r"\t",
            "\u{1f600}",
            r"end\r",
            r"end$",
            r"\Aalpha",
            r"end\s*\z",
            r"(?x) a l p h a # no",
            "(?s)a.b",
            "(?-u)\\w+",
            r"(?-u:\b)A",
            r"(?-u)\d",
            r"[\p{L}--a-z]",
            r"[\w&&[^a-z]]",
            r"(?i)[k]",
            r"\bAlpha",
            r"\b{start}a",
            r"\b{end}",
            r"\<the\>",
            r"(?i)\u{17f}",
            r"(?R)end$",
            r"(?R)^the",
            r"[^\n]end",
            r"\w\W\w",
            r"(?m)^a",
            "(a|b)(c|d)?",
            "(?P<name>a)l",
            r"(?i:A)lpha",
            r"\D\D",
            r"e\u{301}",
            r"\X41|z",
        ] {
            let Ok(parsed) = Pattern::parse(pattern) else {
                assert_eq!(pattern, r"\X41|z");
                continue;
            };
            drop(parsed);
            for told in [Told::Lines, Told::Counts] {
                let found = rig.same(&lines_with(pattern, told, 0)).await.unwrap();
                if told == Told::Lines && is_checked {
                    let ours: Vec<String> = found
                        .matches
                        .iter()
                        .filter(|found| found.path != "strays")
                        .map(|found| format!("{}:{}", found.path, found.line))
                        .collect();
                    // The engine of an older one saw other things before stray bytes.
                    let said = ripgrep(rig.root(), &["-g", "!strays", "-e", pattern, "."]).unwrap();
                    let theirs: Vec<String> = said
                        .iter()
                        .map(|line| line.splitn(3, ':').take(2).collect::<Vec<_>>().join(":"))
                        .collect();
                    // An older one does not know the word boundaries of today.
                    if !theirs.is_empty()
                        || !pattern.contains(r"\b{") && !pattern.contains(r"\<") && !pattern.contains("(?R)")
                    {
                        assert_eq!(ours, theirs, "{pattern}");
                    }
                }
            }
        }
        rig.close().await;
    });
}

/// A pattern that means something, mostly.
fn pattern() -> impl Strategy<Value = String> {
    let atom = prop_oneof![
        4 => "[a-c]{1,3}",
        2 => prop::sample::select(vec!["\u{e9}", "\u{1f600}", ".", r"\w", r"\W", r"\d", r"\s", r"\S", "[a-b]", "[^a]", "[^\u{e9}]", r"\pL", r"\x00", r"\r"])
            .prop_map(str::to_owned),
        1 => prop::sample::select(vec!["^", "$", r"\b", r"\B", r"\A", r"\z", r"\b{start}", r"\b{end}", r"\b{start-half}", r"\b{end-half}", r"(?-u:\b)", "(?R:$)", "(?R:^)"])
            .prop_map(str::to_owned),
    ];
    let tree = atom.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 1..4).prop_map(|parts| parts.concat()),
            prop::collection::vec(inner.clone(), 1..4).prop_map(|parts| format!("(?:{})", parts.join("|"))),
            (
                inner.clone(),
                prop::sample::select(vec!["*", "+", "?", "*?", "+?", "{2}", "{1,3}", "{0,2}?"])
            )
                .prop_map(|(part, times)| format!("(?:{part}){times}")),
            inner.clone().prop_map(|part| format!("({part})")),
            inner.prop_map(|part| format!("(?i:{part})")),
        ]
    });
    tree.prop_map(|tree| tree)
}

/// Bytes that are text, nearly text, or not.
fn text() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        6 => prop::sample::select(vec!["a", "b", "c", "ab", "A", " ", "_", "1", "\n", "\r\n", "\t"]).prop_map(|piece| piece.as_bytes().to_vec()),
        2 => prop::sample::select(vec!["\u{e9}", "\u{c9}", "\u{1f600}", "\u{301}", "\u{a0}", "\u{2028}", "\u{85}"])
            .prop_map(|piece| piece.as_bytes().to_vec()),
        1 => prop::sample::select(vec![&b"\xe9"[..], b"\xc3", b"\xf0\x9f", b"\xed\xa0\x80", b"\xff", b"\x80", b"\r"]).prop_map(<[u8]>::to_vec),
    ];
    // A line that begins with a byte that only goes on with a character: whether Rust's engine takes the end of
    // the line before for what stands before it depends on whether that line matched.
    let stray = |text: &[u8]| {
        text.windows(2)
            .any(|pair| pair[0] == b'\n' && (0x80..0xc0).contains(&pair[1]))
    };
    prop::collection::vec(piece, 0..24)
        .prop_map(|pieces| pieces.concat())
        .prop_filter("a stray byte at the beginning of a line", move |text| !stray(text))
}

#[test]
fn any_pattern_finds_the_same_lines_in_any_text() {
    let rig = runtime().block_on(Rig::new());
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(200));
    let texts = prop::collection::vec(text(), 1..5);
    let result = runner.run(&(pattern(), texts, 0_u64..3), |(pattern, texts, context)| {
        if Pattern::parse(&pattern).is_err() {
            return Ok(());
        }
        rig.clear();
        for (number, text) in texts.iter().enumerate() {
            rig.file(number.to_string(), text);
        }
        runtime()
            .block_on(rig.same(&lines_with(&pattern, Told::Lines, context)))
            .unwrap();
        Ok(())
    });
    runtime().block_on(rig.close());
    result.unwrap();
}

#[test]
fn a_pattern_without_end_in_python_is_stopped_and_says_so() {
    runtime().block_on(async {
        let rig = Rig::new().await;
        rig.file("f", format!("{}c\n", "a".repeat(60)));
        let request = lines("(?:a|a)*(?:a|a)*b|(?:aa?)+b");
        assert_eq!(rig.here(&request).await.unwrap().total, 0);
        let error = rig
            .there(&lines("x(?:a|aa)+b|c(?:a|aa)+b|^(?:a|aa)+b$"))
            .await
            .unwrap_err();
        assert!(error.contains("more simply"), "{error}");
        // Another one is not held up by it, and one that nobody waits for ends.
        let slow = lines("x(?:a|aa)+b|^(?:a|aa)+b$");
        let quick = lines("c$");
        let (first, second) = tokio::join!(
            tokio::time::timeout(std::time::Duration::from_millis(500), rig.there(&slow)),
            rig.there(&quick),
        );
        assert!(first.is_err());
        assert_eq!(second.unwrap().total, 1);
        rig.close().await;
    });
}
