//! Which files are looked at: ignore files, hidden ones, globs.

use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::process::Command;

use proptest::prelude::*;
use talaria_broker::tools::SearchRequest;

use crate::rig::{Rig, lines, names, ripgrep, runtime};

/// Files found below the folder, as both engines and `rg` have it.
async fn found(rig: &Rig, globs: &[&str]) -> Vec<String> {
    let globs = globs.iter().map(|glob| (*glob).to_owned()).collect();
    let found = rig.same(&SearchRequest { globs, ..lines("") }).await.unwrap();
    let listed: BTreeSet<String> = rig.same(&names("*")).await.unwrap().files.into_iter().collect();
    let found: Vec<String> = found.matches.into_iter().map(|found| found.path).collect();
    assert!(found.iter().all(|path| listed.contains(path)));
    found
}

#[test]
fn ignore_files_as_ripgrep_reads_them() {
    runtime().block_on(async {
        let rig = Rig::new().await;
        for path in [
            "a.log",
            "b.txt",
            "keep.log",
            "build/x",
            "src/build/y",
            "src/a.log",
            "src/deep/a.tmp",
            "src/deep/b.tmp",
            "docs/x/y/z",
            "docs/z",
            ".hidden",
            ".config/file",
            ".github/workflow",
            "odd name",
            "trail ",
            "#hash",
            "!bang",
            "a[b]",
            "vendor/lib/f",
            "vendor/keep/f",
            "sub/own.txt",
            "sub/other.txt",
            "f\u{e9}",
            "UPPER.TXT",
            "x/{a}",
            "node_modules/m/i.js",
            "deep/a/b/c/d/e",
        ] {
            rig.file(path, "x");
        }
        for (rules, gone) in [
            ("*.log\n!keep.log\n", vec!["a.log", "src/a.log"]),
            ("build/\n", vec!["build/x", "src/build/y"]),
            ("/build\n", vec!["build/x"]),
            ("src/*.log\n", vec!["src/a.log"]),
            ("**/deep/*.tmp\n", vec!["src/deep/a.tmp", "src/deep/b.tmp"]),
            ("docs/**/z\n", vec!["docs/x/y/z", "docs/z"]),
            ("docs/**\n", vec!["docs/x/y/z", "docs/z"]),
            ("vendor/*\n!vendor/keep\n", vec!["vendor/lib/f"]),
            ("\\#hash\n\\!bang\n# comment\n\n", vec!["!bang", "#hash"]),
            ("trail\\ \nb.txt   \n", vec!["b.txt", "trail "]),
            ("a[[]b]\n", vec!["a[b]"]),
            ("[!a-z]*.TXT\nf?\nf??\n", vec!["UPPER.TXT", "f\u{e9}"]),
            (
                "*.{log,tmp}\n",
                vec!["a.log", "keep.log", "src/a.log", "src/deep/a.tmp", "src/deep/b.tmp"],
            ),
            ("{\n[\n\\\n*.log\n", vec!["a.log", "keep.log", "src/a.log"]),
            ("\u{feff}b.txt\r\nbuild\r\n", vec!["b.txt", "build/x", "src/build/y"]),
            ("!.hidden\n!.config/\n", vec![]),
            ("/\n!\n!/\n", vec![]),
            ("deep/a/**/e\n", vec!["deep/a/b/c/d/e"]),
            ("*/b/\n", vec![]),
        ] {
            rig.file(".ignore", "");
            std::fs::remove_file(rig.root().join(".ignore")).unwrap();
            let before = found(&rig, &[]).await;
            rig.file(".ignore", rules);
            let after = found(&rig, &[]).await;
            let lost: Vec<&String> = before.iter().filter(|path| !after.contains(path)).collect();
            assert_eq!(lost, gone, "{rules}");
            std::fs::remove_file(rig.root().join(".ignore")).unwrap();
        }
        rig.close().await;
    });
}

#[test]
fn rules_of_git_hold_up_to_the_root_of_the_repository() {
    runtime().block_on(async {
        let rig = Rig::new().await;
        for path in [
            "repo/a.txt",
            "repo/sub/a.txt",
            "repo/sub/b.txt",
            "repo/inner/a.txt",
            "repo/sub/c.md",
            "a.txt",
        ] {
            rig.file(path, "x");
        }
        rig.file(".gitignore", "*.md\n");
        rig.file("repo/.gitignore", "a.txt\n");
        rig.file("repo/sub/.gitignore", "!a.txt\n");
        let at = async |path: &str| {
            let request = SearchRequest {
                path: path.to_owned(),
                ..lines("")
            };
            let found = rig.same(&request).await.unwrap();
            found.matches.into_iter().map(|found| found.path).collect::<Vec<_>>()
        };
        // Without a repository they hold all the same.
        assert_eq!(at(".").await, ["a.txt", "repo/sub/a.txt", "repo/sub/b.txt"]);
        assert_eq!(at("repo/sub").await, ["repo/sub/a.txt", "repo/sub/b.txt"]);
        std::fs::create_dir_all(rig.root().join("repo/.git/info")).unwrap();
        std::fs::create_dir_all(rig.root().join("repo/inner/.git")).unwrap();
        assert_eq!(
            at("repo").await,
            ["repo/inner/a.txt", "repo/sub/a.txt", "repo/sub/b.txt", "repo/sub/c.md"]
        );
        rig.file("repo/.git/info/exclude", "c.md\n/sub/b.txt\n");
        assert_eq!(at("repo/sub").await, ["repo/sub/a.txt"]);
        rig.file("repo/sub/.ignore", "a.txt\n");
        rig.file("repo/sub/.rgignore", "!b.txt\n");
        assert_eq!(at("repo/sub").await, ["repo/sub/b.txt"]);
        if let Some(said) = ripgrep(&rig.root().join("repo"), &["", "."]) {
            let ours: Vec<String> = at("repo").await.iter().map(|path| format!("{path}:1:x")).collect();
            assert_eq!(ours, said.iter().map(|line| format!("repo/{line}")).collect::<Vec<_>>());
        }
        // A work tree's `.git` is a file.
        let real = rig.root().join("store/worktrees/w");
        rig.file("store/info/exclude", "a.txt\n");
        rig.file("store/worktrees/w/commondir", "../..\n");
        rig.file("tree/.git", format!("gitdir: {}\n", real.display()));
        rig.file("tree/a.txt", "x");
        rig.file("tree/b.txt", "x");
        assert_eq!(at("tree").await, ["tree/b.txt"]);
        rig.close().await;
    });
}

#[test]
fn an_ignore_file_that_is_none_holds_up_nobody() {
    runtime().block_on(async {
        let rig = Rig::new().await;
        let fifo = |path: &str| {
            let path = rig.root().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            let mode = rustix::fs::Mode::from_raw_mode(0o600);
            rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        };
        for path in ["a/f", "b/f", "c/deep/f", "d/f", "e/f"] {
            rig.file(path, "x");
        }
        fifo("a/.gitignore");
        fifo("c/deep/.rgignore");
        fifo("d/.git/info/exclude");
        symlink("/dev/zero", rig.root().join("e/.ignore")).unwrap();
        symlink("/nowhere", rig.root().join("b/.ignore")).unwrap();
        let found = rig.same(&lines("x")).await.unwrap();
        assert_eq!(
            found.matches.iter().map(|found| &*found.path).collect::<Vec<_>>(),
            ["b/f"]
        );
        let folders = ["a", "c/deep", "d", "e"];
        assert!(
            found
                .warnings
                .iter()
                .zip(folders)
                .all(|(said, folder)| said.contains(&format!("search {folder}: ")))
        );
        assert_eq!(found.warnings.len(), 4, "{:?}", found.warnings);
        rig.same(&names("*")).await.unwrap();
        for path in ["a", "c/deep", "c"] {
            let path = path.to_owned();
            rig.same(&SearchRequest { path, ..lines("x") }).await.ok();
        }
        rig.close().await;
    });
}

const NAMES: [&str; 12] = [
    "a", "b", "ab", "a.b", ".a", "x y", "A", "\u{e9}", "b.log", "c.d.e", "-", "[a]",
];

fn rule() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        4 => prop::sample::select(NAMES.to_vec()).prop_map(str::to_owned),
        3 => prop::sample::select(vec!["*", "**", "?", "*.b", "a*", "[ab]", "[!a]", "[a-c]*", "*.{b,log}", "{a,b}", "**a", "\\a", "[[:alpha:]]", "{a,**}", "[]a]", "[a-]", "*?"])
            .prop_map(str::to_owned),
        1 => "[*?a/\\[\\]{},!.\\\\-]{1,6}",
    ];
    (
        prop::sample::select(vec!["", "", "!", "/", "!/", "**/", "#", "\\!"]),
        prop::collection::vec(part, 1..4),
        prop::sample::select(vec!["", "", "/", "/**", " ", "\\ "]),
    )
        .prop_map(|(start, parts, end)| format!("{start}{}{end}", parts.join("/")))
}

#[derive(Clone, Debug)]
struct Tree {
    files: Vec<Vec<&'static str>>,
    rules: Vec<(Vec<&'static str>, &'static str, Vec<String>)>,
    repositories: Vec<Vec<&'static str>>,
}

fn tree() -> impl Strategy<Value = Tree> {
    let name = || prop::sample::select(NAMES.to_vec());
    let rules = (
        prop::collection::vec(name(), 0..3),
        prop::sample::select(vec![".gitignore", ".ignore", ".rgignore", ".git/info/exclude"]),
        prop::collection::vec(rule(), 1..4),
    );
    (
        prop::collection::vec(prop::collection::vec(name(), 1..5), 1..12),
        prop::collection::vec(rules, 0..4),
        prop::collection::vec(prop::collection::vec(name(), 0..3), 0..2),
    )
        .prop_map(|(files, rules, repositories)| Tree {
            files,
            rules,
            repositories,
        })
}

fn make(rig: &Rig, tree: &Tree) {
    rig.clear();
    let put = |path: String, content: &str| {
        // Nothing may be put outside of the folder.
        let path = rig.root().join("t").join(path.trim_start_matches('/'));
        // A name may be a file already, where a folder is to be, or the other way round.
        if std::fs::create_dir_all(path.parent().unwrap()).is_ok() {
            std::fs::write(path, content).ok();
        }
    };
    put("first".to_owned(), "word\n");
    for file in &tree.files {
        put(file.join("/"), "word\nother\n");
    }
    for (folder, name, rules) in &tree.rules {
        put(format!("{}/{name}", folder.join("/")), &rules.join("\n"));
    }
    for folder in &tree.repositories {
        std::fs::create_dir_all(rig.root().join("t").join(folder.join("/")).join(".git")).ok();
    }
}

#[test]
fn any_tree_is_searched_the_same() {
    let rig = runtime().block_on(Rig::new());
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(150));
    let globs = prop::collection::vec(rule(), 0..3);
    let result = runner.run(&(tree(), globs), |(tree, globs)| {
        make(&rig, &tree);
        let mut request = SearchRequest {
            path: "t".to_owned(),
            ..lines("word")
        };
        runtime().block_on(async {
            rig.same(&request).await.unwrap();
            if !tree.files[0].is_empty() {
                rig.same(&SearchRequest {
                    path: format!("t/{}", tree.files[0][0]),
                    ..request.clone()
                })
                .await
                .ok();
            }
            // A glob that is none is refused before.
            let fits = |glob: &&String| {
                let mut builder = ignore::overrides::OverrideBuilder::new("/");
                builder.add(glob).is_ok_and(|builder| builder.build().is_ok())
            };
            request.globs = globs.iter().filter(fits).cloned().collect();
            rig.same(&request).await.unwrap();
        });
        Ok(())
    });
    runtime().block_on(rig.close());
    result.unwrap();
}

/// Rules that ripgrep reads today as it did years ago: what is installed may be old.
#[test]
fn plain_trees_are_searched_as_ripgrep_does() {
    if Command::new("rg").arg("--version").output().is_err() {
        return;
    }
    let plain = || {
        prop::sample::select(vec![
            "a", "b", "*.b", "/a", "a/b", "!b", "*.log", "x y", "b/", "**/a", "!a.b", "c.*",
        ])
    };
    let rules = (
        prop::collection::vec(prop::sample::select(NAMES.to_vec()), 0..2),
        prop::sample::select(vec![".gitignore", ".ignore", ".git/info/exclude"]),
        prop::collection::vec(plain().prop_map(str::to_owned), 1..4),
    );
    let files = prop::collection::vec(prop::collection::vec(prop::sample::select(NAMES.to_vec()), 1..5), 1..12);
    let rig = runtime().block_on(Rig::new());
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(150));
    let result = runner.run(&(files, prop::collection::vec(rules, 0..4)), |(files, rules)| {
        let repositories = vec![Vec::new()];
        make(
            &rig,
            &Tree {
                files,
                rules,
                repositories,
            },
        );
        let request = SearchRequest {
            path: "t".to_owned(),
            ..lines("word")
        };
        let found = runtime().block_on(rig.same(&request)).unwrap();
        let ours: Vec<String> = found
            .matches
            .into_iter()
            .map(|found| format!("{}:{}:word", found.path, found.line))
            .collect();
        let theirs = ripgrep(rig.root(), &["word", "t"]).unwrap();
        prop_assert_eq!(ours, theirs);
        Ok(())
    });
    runtime().block_on(rig.close());
    result.unwrap();
}
