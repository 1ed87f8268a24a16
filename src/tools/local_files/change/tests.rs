//! What a change does, and what it leaves when it fails.

use std::os::unix::fs::symlink;

use super::super::fetch::fetch;
use super::super::names;
use super::*;
use crate::tools::Fetched;

fn changed(changes: &[FileChange]) -> Result<(), ChangeError> {
    change(changes, &Notes::default())
}

fn found(path: &Path) -> FetchedFile {
    match fetch(path).unwrap() {
        Fetched::File(found) => found,
        missing => panic!("{missing:?}"),
    }
}

fn edit(path: &Path, new: &'static str) -> FileChange {
    let found = found(path);
    let range = 0..found.content.len();
    let bytes = Bytes::from_static(new.as_bytes());
    FileChange::Edit {
        found,
        splices: vec![Splice { range, bytes }],
    }
}

fn create(path: &Path) -> FileChange {
    FileChange::Create {
        place: Bytes::copy_from_slice(path.as_os_str().as_bytes()),
        content: Bytes::from_static(b"new"),
        like: None,
    }
}

fn files(root: &Path, count: usize) -> Vec<PathBuf> {
    (0..count)
        .map(|number| {
            let path = root.join(number.to_string());
            std::fs::write(&path, format!("old {number}")).unwrap();
            path
        })
        .collect()
}

#[test]
fn what_has_changed_meanwhile_is_a_conflict_and_stays() {
    type Meanwhile = fn(&Path);
    let cases: [Meanwhile; 4] = [
        |path| std::fs::write(path, "xxxxx").unwrap(),
        |path| std::fs::write(path, "longer than before").unwrap(),
        |path| std::fs::remove_file(path).unwrap(),
        |path| {
            std::fs::remove_file(path).unwrap();
            std::fs::create_dir(path).unwrap();
        },
    ];
    for meanwhile in cases {
        for removes in [false, true] {
            let folder = tempfile::tempdir().unwrap();
            let paths = files(folder.path(), 2);
            let mut changes = vec![edit(&paths[0], "new"), edit(&paths[1], "new")];
            if removes {
                changes[1] = FileChange::Remove {
                    found: found(&paths[1]),
                };
            }
            meanwhile(&paths[1]);
            let before = std::fs::read(&paths[1]).ok();
            let error = changed(&changes).unwrap_err();
            assert!(
                matches!(&error, ChangeError::Conflict(text) if text.contains("meanwhile")),
                "{error:?}"
            );
            assert_eq!(std::fs::read(&paths[0]).unwrap(), b"old 0");
            assert_eq!(std::fs::read(&paths[1]).ok(), before);
            assert!(names(folder.path(), 9).len() <= 2);
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("f");
    std::fs::write(&path, "there").unwrap();
    assert!(matches!(changed(&[create(&path)]), Err(ChangeError::Conflict(_))));
    assert_eq!(std::fs::read(&path).unwrap(), b"there");
}

#[test]
fn when_one_fails_at_the_end_the_others_are_put_back() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let paths = files(root, 3);
    std::fs::set_permissions(&paths[0], Permissions::from_mode(0o640)).unwrap();
    let twice = root.join("zz/twice");
    // Both are made ready; only the first can be put there.
    let changes = [
        edit(&paths[0], "new"),
        FileChange::Remove {
            found: found(&paths[1]),
        },
        create(&root.join("made/there")),
        create(&twice),
        create(&twice),
        edit(&paths[2], "new"),
    ];
    assert!(matches!(changed(&changes), Err(ChangeError::Conflict(_))));
    let mut left = names(root, 99);
    left.sort();
    assert_eq!(left, ["0", "1", "2"]);
    for (number, path) in paths.iter().enumerate() {
        assert_eq!(std::fs::read_to_string(path).unwrap(), format!("old {number}"));
    }
    assert_eq!(paths[0].metadata().unwrap().mode() & 0o7777, 0o640);
    // What was kept of a removed file is put back too.
    let notes = Notes::default();
    let mut step = Step::new(&changes[1], &notes);
    step.prepare(true, &mut []).unwrap();
    step.commit().unwrap();
    assert!(!paths[1].exists());
    step.undo().unwrap();
    assert_eq!(std::fs::read(&paths[1]).unwrap(), b"old 1");
}

#[test]
fn who_reads_meanwhile_reads_on_in_what_was() {
    let folder = tempfile::tempdir().unwrap();
    let paths = files(folder.path(), 2);
    let mut before = paths.iter().map(|path| File::open(path).unwrap());
    let (mut one, mut other) = (before.next().unwrap(), before.next().unwrap());
    changed(&[edit(&paths[0], "new"), edit(&paths[1], "new")]).unwrap();
    for (file, old) in [(&mut one, "old 0"), (&mut other, "old 1")] {
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, old);
    }
    changed(&[edit(&paths[0], "newer")]).unwrap();
    assert_eq!(std::fs::read(&paths[0]).unwrap(), b"newer");
    assert_eq!(names(folder.path(), 9).len(), 2);
}

#[test]
fn two_that_wait_for_each_other_both_end() {
    let folder = tempfile::tempdir().unwrap();
    let paths = files(folder.path(), 1);
    let (one, other) = (edit(&paths[0], "one"), edit(&paths[0], "other"));
    let results: Vec<_> = std::thread::scope(|scope| {
        let threads = [one, other].map(|edit| scope.spawn(move || changed(&[edit])));
        threads.map(|thread| thread.join().unwrap()).into()
    });
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1, "{results:?}");
}

#[test]
fn a_moved_file_and_a_removed_link() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let paths = files(root, 1);
    std::fs::set_permissions(&paths[0], Permissions::from_mode(0o751)).unwrap();
    symlink("0", root.join("link")).unwrap();
    let place = |name: &str| Bytes::copy_from_slice(root.join(name).as_os_str().as_bytes());
    let moved = FileChange::Create {
        place: place("moved"),
        content: Bytes::from_static(b"moved"),
        like: Some(place("0")),
    };
    let link = found(&root.join("link"));
    assert_eq!(link.link.as_deref(), Some(&b"0"[..]));
    let place = place("link");
    let unlink = |to: &'static [u8]| FileChange::Unlink {
        place: place.clone(),
        link: Bytes::from_static(to),
    };
    let conflict = changed(&[unlink(b"1")]);
    assert!(matches!(conflict, Err(ChangeError::Conflict(_))), "{conflict:?}");
    changed(&[moved, unlink(b"0")]).unwrap();
    assert_eq!(root.join("moved").metadata().unwrap().mode() & 0o7777, 0o751);
    assert!(!root.join("link").is_symlink() && paths[0].exists());
}

#[test]
fn splices_are_exact() {
    let content = b"0123456789";
    let splice = |range, bytes: &'static [u8]| Splice {
        range,
        bytes: Bytes::from_static(bytes),
    };
    for (splices, expected) in [
        (vec![], &b"0123456789"[..]),
        (
            vec![splice(0..0, b"a"), splice(3..5, b""), splice(10..10, b"z")],
            b"a01256789z",
        ),
        (vec![splice(0..10, b"")], b""),
    ] {
        assert_eq!(pieces(content, &splices).concat(), expected);
    }
}
