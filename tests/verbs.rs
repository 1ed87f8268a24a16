//! File operations of a target's worker, through a real supervisor, held against the broker's own.
#![expect(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;
use talaria_broker::kernel::{Agent, AgentError};
use talaria_broker::tools::{LocalFiles, Page, ReadRequest, Written};

#[path = "common/supervisor.rs"]
mod supervisor;
use supervisor::runtime;

/// Bounds a hang; says nothing of speed.
const HANG: Duration = Duration::from_secs(60);

/// A session's supervisor with a folder to work in.
struct Rig {
    agent: Agent,
    /// In a folder that nobody else works in: errors list what is there.
    root: PathBuf,
    _folder: tempfile::TempDir,
    home: tempfile::TempDir,
}

impl Rig {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        std::fs::create_dir(&root).unwrap();
        Self {
            agent: supervisor::start().await,
            root,
            _folder: folder,
            home: tempfile::tempdir().unwrap(),
        }
    }

    fn root(&self) -> &Path {
        &self.root
    }

    fn here(&self) -> LocalFiles {
        LocalFiles::new(self.root(), self.home.path().to_path_buf())
    }

    async fn verb(&self, verb: &'static str, arguments: &[&[u8]]) -> Result<Result<Vec<Bytes>, String>, AgentError> {
        let bytes = |path: &Path| path.as_os_str().as_bytes().to_vec();
        let arguments = arguments.iter().map(|field| Bytes::copy_from_slice(field)).collect();
        let work = self
            .agent
            .run_verb(verb, bytes(self.root()), bytes(self.home.path()), arguments, None);
        tokio::time::timeout(HANG, work).await.unwrap()
    }

    async fn read(&self, request: &ReadRequest) -> Result<Page, String> {
        let limit = request.limit.to_string();
        let raw: &[u8] = if request.raw { b"1" } else { b"" };
        let fields = [
            request.path.as_bytes(),
            request.offset.as_bytes(),
            limit.as_bytes(),
            raw,
        ];
        let fields = self.verb("read", &fields).await.unwrap()?;
        let [content, lines, size, next] = &texts(&fields)[..] else {
            panic!("{} fields", fields.len())
        };
        Ok(Page {
            content: content.clone(),
            total_lines: lines.parse().ok(),
            file_size: size.parse().unwrap(),
            next_offset: Some(next.clone()).filter(|next| !next.is_empty()),
        })
    }

    async fn write(&self, path: &str, content: &str) -> Result<Written, String> {
        let fields = self
            .verb("write", &[path.as_bytes(), content.as_bytes()])
            .await
            .unwrap()?;
        let texts = texts(&fields);
        Ok(Written {
            bytes_written: texts[0].parse().unwrap(),
            resolved_path: texts[1].clone(),
            dirs_created: texts[2..].to_vec(),
        })
    }

    /// Both read the same.
    async fn same_page(&self, request: ReadRequest) {
        let there = self.read(&request).await;
        let here = self.here().read_page(request.clone()).await;
        assert_eq!(
            format!("{there:?}"),
            format!("{:?}", here.map_err(|error| error.to_string())),
            "{request:?}"
        );
    }

    async fn close(self) {
        self.agent.close().await;
    }
}

fn texts(fields: &[Bytes]) -> Vec<String> {
    fields
        .iter()
        .map(|field| String::from_utf8(field.to_vec()).unwrap())
        .collect()
}

fn request(path: &str, offset: &str, limit: u64, raw: bool) -> ReadRequest {
    ReadRequest {
        path: path.into(),
        offset: offset.into(),
        limit,
        raw,
    }
}

/// Texts in all encodings, near misses of them, and what is none.
fn file_bytes() -> impl Strategy<Value = Vec<u8>> {
    let text = "([a-c\u{e9}\u{20ac}\u{1f600}]{0,30}\r?\r?\n?){0,12}";
    prop_oneof![
        text.prop_map(String::into_bytes),
        text.prop_map(|text: String| [b"\xef\xbb\xbf", text.as_bytes()].concat()),
        text.prop_map(|text: String| {
            text.chars()
                .map(|c| if (c as u32) < 256 { c as u32 as u8 } else { 0xe9 })
                .collect()
        }),
        prop::collection::vec(
            prop::sample::select(&b"ab\r\n\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\xed\xa0\xff"[..]),
            0..60
        ),
        (text, any::<bool>()).prop_map(|(text, little): (String, bool)| utf16(text.encode_utf16(), little)),
        (
            prop::collection::vec(0xd7f0_u16..0xe010, 0..20),
            any::<bool>(),
            any::<bool>()
        )
            .prop_map(|(units, little, odd)| {
                let mut bytes = utf16(units.into_iter(), little);
                bytes.extend(odd.then_some(b'x'));
                bytes
            }),
        prop::collection::vec(any::<u8>(), 0..40),
    ]
}

fn utf16(units: impl Iterator<Item = u16>, little: bool) -> Vec<u8> {
    let order = if little { u16::to_le_bytes } else { u16::to_be_bytes };
    std::iter::once(0xfeff).chain(units).flat_map(order).collect()
}

#[test]
fn the_same_bytes_give_the_same_page() {
    let rig = runtime().block_on(Rig::new());
    let path = rig.root().join("f");
    let offset = prop_oneof!["[1-9]", "[1-9]:[0-9]{1,2}", "[0-9:+-]{0,4}"];
    let cases = (file_bytes(), offset, 1_u64..5, any::<bool>());
    let mut runner = proptest::test_runner::TestRunner::default();
    let result = runner.run(&cases, |(bytes, offset, limit, raw)| {
        std::fs::write(&path, &bytes).unwrap();
        runtime().block_on(rig.same_page(request("f", &offset, limit, raw)));
        Ok(())
    });
    runtime().block_on(rig.close());
    result.unwrap();
}

#[test]
fn large_files_give_the_same_page() {
    runtime().block_on(async {
        let rig = Rig::new().await;
        let rows: String = (0..30_000).map(|row| format!("row {row} \u{e9}\n")).collect();
        let latin: Vec<u8> = rows.chars().map(|c| c as u32 as u8).collect();
        let wide = utf16(rows.encode_utf16(), true);
        let line = "\u{20ac}".repeat(200_000);
        for (name, bytes) in [
            ("rows", rows.as_bytes()),
            ("latin", &latin),
            ("wide", &wide),
            ("line", line.as_bytes()),
        ] {
            std::fs::write(rig.root().join(name), bytes).unwrap();
            for (offset, limit) in [
                ("1", 2000),
                ("30000", 20_000),
                ("59990:3", 2000),
                ("1", 100_000),
                ("70000", 1),
            ] {
                for raw in [false, true] {
                    rig.same_page(request(name, offset, limit, raw)).await;
                }
            }
        }
        let huge = rig.root().join("huge");
        std::fs::File::create(&huge).unwrap().set_len((256 << 20) + 1).unwrap();
        rig.same_page(request("huge", "1", 1, false)).await;
        for path in ["/proc/meminfo", "/proc/cpuinfo", "/proc/1/status"] {
            let page = rig.read(&request(path, "1", 1, false)).await.unwrap();
            assert!(page.file_size > 0 && page.content.starts_with("1|"), "{page:?}");
        }
        rig.close().await;
    });
}

#[test]
fn what_cannot_be_read_says_the_same() {
    runtime().block_on(async {
        let rig = Rig::new().await;
        let root = rig.root();
        std::fs::write(root.join("config.yaml"), "x").unwrap();
        std::fs::write(rig.home.path().join("at home"), "x").unwrap();
        for folder in ["sub", "many", "odd/confg"] {
            std::fs::create_dir_all(root.join(folder)).unwrap();
        }
        for name in 0..60 {
            std::fs::write(root.join(format!("many/name{name}")), "").unwrap();
        }
        for name in [&b"caf\xe9.txt"[..], b"config", b"config.old", b"confi"] {
            std::fs::write(root.join("odd").join(std::ffi::OsStr::from_bytes(name)), "").unwrap();
        }
        symlink("circle", root.join("circle")).unwrap();
        symlink("no/where", root.join("astray")).unwrap();
        symlink("/proc/self/fd", root.join("descriptors")).unwrap();
        symlink("config.yaml", root.join("link")).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            root.join("fifo"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        let long = "n".repeat(300);
        let absolute = format!("{}/./sub//", root.display());
        for path in [
            "config.yml",
            "zzzz",
            "no/such/place",
            "many/nmae7",
            "many/name",
            "odd/confg.yaml",
            "odd/cafe.txt",
            ".",
            "..",
            "sub",
            "sub/",
            "many",
            "odd",
            "config.yaml/x",
            "config.yaml/",
            "circle",
            "circle/x",
            "astray",
            "astray/x",
            &long,
            &absolute,
            "",
            "a\0\"b\\\n\u{7f}",
            "~",
            "~/at home",
            "~/at hom",
            "~//at home",
            "~other",
            "link",
            "fifo",
            "/dev/zero",
            "/dev/stdin",
            "/dev/fd/0",
            "/proc/self/status",
            "descriptors/0",
            "/proc/self/../self/fd",
            "sub/../../x",
            "sub/..",
            "sub/./.",
            "/",
            "/proc/kmsg-none",
            "//config.yml",
        ] {
            rig.same_page(request(path, "1", 10, false)).await;
        }
        for offset in [
            "",
            "0",
            "x",
            "1:",
            ":1",
            "1:2:3",
            "+1",
            "18446744073709551616",
            "\u{661}",
        ] {
            rig.same_page(request("config.yaml", offset, 10, false)).await;
        }
        for (name, bytes) in [
            ("png", &b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"[..]),
            ("pdf", b"%PDF-1.7\n"),
            ("gif", b"GIF8 is how it starts, but it is text"),
            ("nul", b"a\0b"),
            ("strange", b"\x01\x02\x03\x04\x05abc"),
            ("utf32", b"\xff\xfe\0\0a\0\0\0"),
            ("mark", b"\xff\xfe"),
            ("colour", b"\x1b[31mcolour\x1b[0m\x08\x0c\ttab"),
        ] {
            std::fs::write(root.join(name), bytes).unwrap();
            rig.same_page(request(name, "1", 10, true)).await;
        }
        rig.close().await;
    });
}

/// A folder as a tree of names, bits, and what is behind them.
fn seen(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut pending = vec![folder.to_path_buf()];
    while let Some(next) = pending.pop() {
        for entry in std::fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            let status = path.symlink_metadata().unwrap();
            let shown = path.strip_prefix(folder).unwrap().display();
            let held = if status.is_file() {
                std::fs::read(&path).unwrap()
            } else {
                Vec::new()
            };
            found.push(format!("{shown} {:o} {held:?}", status.permissions().mode()));
            if status.is_dir() {
                pending.push(path);
            }
        }
    }
    found.sort();
    found
}

fn prepare(root: &Path) {
    for folder in ["d", "sub"] {
        std::fs::create_dir(root.join(folder)).unwrap();
    }
    for (name, bits) in [
        ("file", 0o644),
        ("d/program", 0o755),
        ("private", 0o600),
        ("odd", 0o4751),
    ] {
        std::fs::write(root.join(name), "what was here before").unwrap();
        std::fs::set_permissions(root.join(name), PermissionsExt::from_mode(bits)).unwrap();
    }
    for (target, name) in [
        ("d/program", "one"),
        ("one", "two"),
        ("d/later", "dangling"),
        ("circle", "circle"),
        ("sub", "linked"),
        ("/dev/null", "nothing"),
        ("nowhere/f", "lost"),
    ] {
        symlink(target, root.join(name)).unwrap();
    }
    let mode = rustix::fs::Mode::RWXU;
    rustix::fs::mknodat(rustix::fs::CWD, root.join("pipe"), rustix::fs::FileType::Fifo, mode, 0).unwrap();
    drop(std::os::unix::net::UnixListener::bind(root.join("socket")).unwrap());
    std::fs::write(root.join("~named"), "").unwrap();
}

#[test]
fn writing_does_the_same() {
    runtime().block_on(async {
        let rig = Rig::new().await;
        let (there, here) = (rig.root().join("there/w"), rig.root().join("here/w"));
        for folder in [&there, &here] {
            std::fs::create_dir_all(folder).unwrap();
            prepare(folder);
        }
        let long = format!("made/{}", "n".repeat(300));
        let content = "`$(x)` 'EOF'\r\n\"\u{e9}\u{1f600}\"\0\n--- stderr ---\nno newline";
        for path in [
            "file",
            "d/program",
            "private",
            "odd",
            "new",
            "a/b/c",
            "a/b/../b/d",
            "x/../y/f",
            "one",
            "two",
            "dangling",
            "circle",
            "linked/f",
            "linked",
            "nothing",
            "lost",
            "d",
            "d/",
            "",
            ".",
            "..",
            "d/..",
            "d/.",
            "none/..",
            "file/x",
            &long,
            "sub//deep/./f",
            "/",
            "/dev/full",
            "/dev/null",
            "/proc/none/x",
            "/proc/none",
            "/sys/none",
            "~no-such-user/x",
            "~no-such-user",
            "~named",
            "pipe",
            "socket",
            "/proc/self/comm",
            "/dev/stdout",
            "fi\0le",
            "na me \u{e9}",
        ] {
            for text in [content, ""] {
                // Where both have a name for themselves, it is made the same.
                let told = |text: String| text.replace("there/", "here/");
                let relative = path.is_empty() || path.starts_with(['/', '~']);
                let place = |folder: &str| {
                    if relative {
                        path.to_owned()
                    } else {
                        format!("{folder}/{path}")
                    }
                };
                let one = rig.write(&place("there/w"), text).await;
                let other = rig.here().write(&place("here/w"), text).await;
                assert_eq!(
                    told(format!("{one:?}")),
                    format!("{:?}", other.map_err(|error| error.to_string())),
                    "{path:?}"
                );
                assert_eq!(seen(&there), seen(&here), "{path:?}");
            }
        }
        let large = "0123456789abcdef".repeat(4 << 20);
        let written = rig.write("~/large", &large).await.unwrap();
        assert_eq!(written.bytes_written, large.len() as u64);
        assert!(std::fs::read(rig.home.path().join("large")).unwrap() == large.as_bytes());
        rig.close().await;
    });
}

#[test]
fn verbs_run_side_by_side() {
    runtime().block_on(async {
        let rig = Rig::new().await;
        let work = (0..40).map(|number| {
            let (rig, name) = (&rig, format!("f{number}"));
            async move {
                rig.write(&name, &name).await.unwrap();
                rig.read(&request(&name, "1", 1, true)).await.unwrap().content == name
            }
        });
        assert_eq!(join(work).await, [true; 40]);
        rig.close().await;
    });
}

/// Polls all of them in turn until each is done.
async fn join<T>(work: impl Iterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let mut pending: Vec<_> = work.map(|future| (Box::pin(future), None)).collect();
    std::future::poll_fn(|context| {
        for (future, done) in &mut pending {
            if done.is_none()
                && let std::task::Poll::Ready(result) = future.as_mut().poll(context)
            {
                *done = Some(result);
            }
        }
        if pending.iter().all(|(_, done)| done.is_some()) {
            std::task::Poll::Ready(pending.drain(..).filter_map(|(_, done)| done).collect())
        } else {
            std::task::Poll::Pending
        }
    })
    .await
}

#[test]
fn unknown_verbs_are_refused_and_dropped_ones_hold_up_nobody() {
    runtime().block_on(async {
        let rig = Rig::new().await;
        let error = rig.verb("dance", &[b"x"]).await.unwrap().unwrap_err();
        assert!(error.contains("\"dance\""), "{error}");
        let error = rig.verb("read", &[b"x"]).await.unwrap().unwrap_err();
        assert!(error.contains("failed"), "{error}");
        for number in 0..20 {
            let folder = rig.root().as_os_str().as_bytes().to_vec();
            let arguments = vec![Bytes::from(format!("f{number}")), Bytes::from("x")];
            let work = rig.agent.run_verb("write", folder, Vec::new(), arguments, None);
            let _ = tokio::time::timeout(Duration::from_micros(300 * number), work).await;
        }
        assert_eq!(rig.write("f", "last").await.unwrap().bytes_written, 4);
        rig.close().await;
    });
}
