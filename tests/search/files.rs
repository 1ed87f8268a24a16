//! What is found in files: encodings, long lines, context, pages.

use std::os::unix::fs::symlink;

use talaria_broker::tools::{Found, SearchRequest, Told};

use crate::rig::{Rig, lines, lines_with, names, runtime};

fn contents(found: &Found) -> Vec<String> {
    let shown = |found: &talaria_broker::tools::FoundLine| format!("{}:{}:{}", found.path, found.line, found.content);
    found.matches.iter().map(shown).collect()
}

fn utf16(text: &str, order: fn(u16) -> [u8; 2]) -> Vec<u8> {
    std::iter::once(0xfeff)
        .chain(text.encode_utf16())
        .flat_map(order)
        .collect()
}

#[test]
fn text_in_all_encodings() {
    runtime().block_on(async {
        let rig = Rig::new().await;
        let text = "one\r\nword caf\u{e9}\n\u{1f600} word";
        rig.file("utf8", text);
        rig.file("mark", [b"\xef\xbb\xbf", text.as_bytes()].concat());
        rig.file("little", utf16(text, u16::to_le_bytes));
        rig.file("big", utf16(text, u16::to_be_bytes));
        rig.file("odd", [&utf16("word\n", u16::to_le_bytes)[..], b"x"].concat());
        rig.file("halves", b"\xff\xfe\x00\xd8w\x00\x00\xdcw\x00");
        rig.file("latin", b"word caf\xe9\nword caf\xc3\xa9 \xe9\n");
        rig.file("binary", b"word\n\0word\n");
        rig.file("late", [&b"word\n".repeat(40_000)[..], b"\0"].concat());
        rig.file("utf32", b"\xff\xfe\0\0w\0\0\0");
        rig.file("empty", "");
        let found = rig.same(&lines("word|w")).await.unwrap();
        assert_eq!(found.binary, 3);
        let latin: Vec<String> = contents(&found)
            .into_iter()
            .filter(|line| line.starts_with("latin"))
            .collect();
        assert_eq!(latin, ["latin:1:word caf\u{e9}", "latin:2:word caf\u{e9} \u{fffd}"]);
        let marked: Vec<String> = contents(&found)
            .into_iter()
            .filter(|line| line.starts_with("mark"))
            .collect();
        assert_eq!(marked, ["mark:2:word caf\u{e9}", "mark:3:\u{1f600} word"]);
        for pattern in [
            "^one",
            "^one\r?$",
            "\u{e9}$",
            ".",
            r"\W",
            "^$",
            "",
            r"caf\w",
            r"\bcaf",
            "(?i)CAF\u{c9}",
            "x",
        ] {
            for told in [Told::Lines, Told::Files, Told::Counts] {
                rig.same(&lines_with(pattern, told, 1)).await.unwrap();
            }
        }
        let one = rig
            .same(&SearchRequest {
                path: "binary".into(),
                ..lines("word")
            })
            .await
            .unwrap_err();
        assert!(one.contains("binary data"), "{one}");
        rig.close().await;
    });
}

#[test]
fn context_and_pages() {
    runtime().block_on(async {
        let rig = Rig::new().await;
        let text: String = (1..=300)
            .map(|number| format!("{} {number}\n", if number % 7 < 2 { "word" } else { "other \u{e9}" }))
            .collect();
        rig.file("a/text", &text);
        rig.file("b", text.replace('\u{e9}', "e"));
        rig.file("c", "word");
        for context in [0, 1, 3, 100] {
            let whole = rig.same(&lines_with("word", Told::Lines, context)).await.unwrap();
            assert_eq!((whole.total, whole.matches.len(), whole.more), (171, 171, false));
            let mut joined = Vec::new();
            for page in 0..18 {
                let mut request = lines_with("word", Told::Lines, context);
                (request.offset, request.limit) = (page * 10, 10);
                let found = rig.same(&request).await.unwrap();
                assert_eq!((found.total, found.more), (171, page < 17), "{page}");
                joined.extend(found.matches);
            }
            assert_eq!(joined, whole.matches);
            let near = &whole.matches[1];
            assert_eq!((near.line, near.before.len() as u64), (7, context.min(6)));
        }
        for (pattern, told) in [("word", Told::Files), ("word", Told::Counts), ("other", Told::Counts)] {
            for (offset, limit) in [(0, 1), (1, 1), (1, 5), (2, 1), (3, 1), (9, 9)] {
                let mut request = lines_with(pattern, told, 0);
                (request.offset, request.limit) = (offset, limit);
                rig.same(&request).await.unwrap();
                request.wanted = names("*").wanted;
                rig.same(&request).await.unwrap();
            }
        }
        rig.close().await;
    });
}

#[test]
fn long_lines_and_large_files() {
    runtime().block_on(async {
        let rig = Rig::new().await;
        let long = format!("{}word{}\n", "\u{e9}".repeat(5000), "x".repeat(3000));
        rig.file("long", &long);
        rig.file("latin", [&b"\xe9".repeat(5000)[..], b"word"].concat());
        rig.file("damaged", [&long.as_bytes()[1..], b"word\xff"].concat());
        rig.file("tail", format!("{}word", "y".repeat(9000)));
        let row: String = (0..20_000).map(|number| format!("row {number} of many\n")).collect();
        let mut large = row.repeat(52);
        large.push_str("a word at the end");
        assert!(large.len() > 17 << 20);
        rig.file("large", &large);
        rig.file("large\u{e9}", large.replace("0 of many", "0 of m\u{e4}ny"));
        rig.file("one line", "z".repeat(17 << 20) + "word\n\nlast");
        let wide: Vec<u8> = utf16(&large[..9 << 20], u16::to_le_bytes);
        rig.file("wide", wide);
        for pattern in ["word", "(?i)word", "row 1999[89] .*y$", "^last", r"m\wny"] {
            let mut request = lines_with(pattern, Told::Lines, 2);
            request.limit = 300;
            let found = rig.same(&request).await.unwrap();
            assert!(found.total > 0, "{pattern}");
        }
        let found = rig.same(&lines("word")).await.unwrap();
        let told = found.matches.iter().find(|found| found.path == "long").unwrap();
        assert!(
            told.content.starts_with("[4500 characters left out]\u{2026}"),
            "{}",
            told.content
        );
        assert!(
            told.content.ends_with("\u{2026}[1504 characters left out]"),
            "{}",
            told.content
        );
        rig.close().await;
    });
}

#[test]
fn a_page_is_cut_where_it_has_too_many_bytes() {
    runtime().block_on(async {
        let rig = Rig::new().await;
        let line = format!("{}\n", "\u{1f600}".repeat(1900));
        rig.file("f", line.repeat(6000));
        let found = rig.same(&lines("\u{1f600}")).await.unwrap();
        assert!(
            found.more && found.total == 6000 && found.matches.len() > 4000,
            "{}",
            found.matches.len()
        );
        let mut rest = lines("\u{1f600}");
        rest.offset = found.matches.len() as u64;
        let rest = rig.same(&rest).await.unwrap();
        assert_eq!((rest.more, rest.matches.len() + found.matches.len()), (false, 6000));
        rig.close().await;
    });
}

#[test]
fn places_that_are_none_or_special() {
    runtime().block_on(async {
        let rig = Rig::new().await;
        rig.file("src/main.rs", "word");
        rig.file("src/.hidden/file", "word");
        rig.file(".dot", "word");
        symlink("src", rig.root().join("link")).unwrap();
        symlink("circle", rig.root().join("circle")).unwrap();
        symlink("/proc/self", rig.root().join("self")).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            rig.root().join("src/fifo"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        let absolute = rig.root().join("src").display().to_string();
        for path in [
            ".",
            "src",
            "./src/",
            "src/../src",
            "link",
            "link/",
            "src/main.rs",
            ".dot",
            "src/.hidden",
            "..//",
            &absolute,
            "srk",
            "src/main.rss",
            "src/main.rs/x",
            "src/main.rs/",
            "src/fifo",
            "circle",
            "",
            "~",
            "a\0b",
            "self",
            "/dev/null",
            "/dev/stdin",
            "/proc/self/fd",
            "no/such/thing",
            "src/none",
        ] {
            for request in [lines("word"), names("*"), names("main*")] {
                let request = SearchRequest {
                    path: path.to_owned(),
                    ..request
                };
                if path == "..//" {
                    // What others put there comes and goes.
                    continue;
                }
                rig.same(&request).await.ok();
            }
        }
        let found = rig
            .same(&SearchRequest {
                path: "link".into(),
                ..lines("word")
            })
            .await
            .unwrap();
        assert_eq!(contents(&found), ["link/main.rs:1:word"]);
        let found = rig
            .same(&SearchRequest {
                path: absolute,
                ..lines("word")
            })
            .await
            .unwrap();
        assert_eq!(contents(&found), ["src/main.rs:1:word"]);
        for globs in [
            vec!["*.py"],
            vec!["!*.rs"],
            vec!["*.rs", "!main*"],
            vec![".*"],
            vec!["/main.rs"],
            vec!["src/"],
        ] {
            let globs = globs.into_iter().map(str::to_owned).collect();
            rig.same(&SearchRequest { globs, ..lines("word") }).await.unwrap();
        }
        rig.close().await;
    });
}

#[test]
fn trees_without_end_end() {
    runtime().block_on(async {
        let rig = Rig::new().await;
        for path in ["/proc/sys/kernel", "/proc/net", "/sys/class", "/dev"] {
            let request = SearchRequest {
                path: path.into(),
                globs: vec!["!**/*hung*".into()],
                ..lines("nothing at all")
            };
            rig.here(&request).await.ok();
            rig.there(&request).await.ok();
        }
        rig.close().await;
    });
}
