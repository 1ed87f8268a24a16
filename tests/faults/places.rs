//! Containers as they are: other users, no home, little to write in, little to run.

use talaria_broker::config::Transport;
use talaria_broker::outcome::Status;
use talaria_broker::session::SessionOptions;

use crate::rig::{Rig, first_process, ours};

/// The core of the contract, in a few cells.
fn works(rig: &Rig, options: SessionOptions) {
    let session = rig.open(options);
    let what = session.cell("import os\nkept = 1\nfrom hermes_tools import terminal, write_file, read_file\nprint(terminal('echo on')['output'], end='')");
    assert_eq!(
        (what.status, what.output.as_str()),
        (Status::Success, "on\n"),
        "{what:#?}"
    );
    assert_eq!(what.notice, None, "{what:#?}");
    let files = "import tempfile\nwhere = '/dev/shm/talaria-test-file'\nprint(write_file(where, 'text').get('error'), read_file(where, raw=True)['content'], kept)\nos.unlink(where)";
    assert_eq!(session.ok(files), "None text 1\n");
    let large = "print(len(terminal('head -c 3000000 /dev/zero | tr \"\\\\0\" x')['output']))";
    let large = session.ok(large);
    assert!(large.trim().parse::<u64>().unwrap() > 1000, "{large}");
    rig.close();
}

macro_rules! images {
    ($($test:ident: $variant:literal),* $(,)?) => { $(
        #[test]
        fn $test() {
            let Some(rig) = Rig::new() else { return };
            let (options, _) = rig.ours($variant);
            works(&rig, options);
        }
    )* };
}

images! {
    an_image_of_an_ordinary_user: "user",
    a_user_that_no_passwd_knows: "stranger",
    no_home: "homeless",
    an_entry_point_that_takes_all: "entrypoint",
    no_command_of_the_image_s: "base",
}

macro_rules! containers {
    ($($test:ident: $variant:literal $options:expr),* $(,)?) => { $(
        #[test]
        fn $test() {
            let Some(rig) = Rig::new() else { return };
            let (options, _) = rig.running($variant, &$options);
            works(&rig, options);
        }
    )* };
}

containers! {
    a_temporary_folder_that_is_read_only: "base" ["--tmpfs", "/tmp:ro"],
    a_temporary_folder_that_runs_nothing: "base" ["--tmpfs", "/tmp:rw,noexec,nosuid,nodev"],
    a_root_that_is_read_only: "base" ["--read-only"],
    a_root_that_is_read_only_for_a_stranger: "stranger" ["--read-only", "--tmpfs", "/tmp"],
    a_container_of_an_ordinary_user: "user" [],
    a_container_of_a_stranger: "stranger" ["-e", "HOME=/nonexistent"],
}

#[test]
fn nothing_but_python_and_a_shell() {
    let Some(rig) = Rig::new() else { return };
    let (options, _) = rig.ours("bare");
    let session = rig.open(options);
    let code = "kept = 1\nfrom hermes_tools import terminal, write_file, read_file\nprint(terminal('echo on')['output'], end='')";
    assert_eq!(session.ok(code), "on\n");
    let code = "print(write_file('/tmp/a.txt', 'text\\n').get('error'), read_file('/tmp/a.txt', raw=True)['content'], kept, end='')";
    assert_eq!(session.ok(code), "None text\n 1");
    rig.close();
}

/// Whatever of that version the machine of the test has, put into the container.
#[test]
fn the_oldest_interpreter_that_is_fit() {
    let Some(rig) = Rig::new() else { return };
    let home = std::env::var("HOME").unwrap_or_default();
    let places = std::fs::read_dir(format!("{home}/.pyenv/versions"))
        .into_iter()
        .flatten()
        .flatten();
    let mut found = places.filter(|entry| entry.file_name().to_string_lossy().starts_with("3.8."));
    let Some(prefix) = found.next().map(|entry| entry.path().display().to_string()) else {
        eprintln!("SKIPPED: there is no Python 3.8 to be put into a container (pyenv install 3.8)");
        return;
    };
    let (mut options, _) = rig.running("bare", &["-v", &format!("{prefix}:{prefix}:ro")]);
    options.python = Some(format!("{prefix}/bin/python3.8").into());
    let session = rig.open(options);
    let outcome = session.cell("import sys\nprint(sys.version_info[:2])");
    assert_eq!(outcome.output, "(3, 8)\n", "{outcome:#?}");
    let python = outcome.kernel.unwrap().python;
    assert!(python.contains("(3.8."), "{python}");
    let code = "kept = 1\nfrom hermes_tools import terminal\nprint(terminal('echo on')['output'], end='')";
    assert_eq!(session.ok(code), "on\n");
    assert_eq!(session.ok("print(kept)"), "1\n");
    rig.close();
}

/// Refused with a reason, and nothing is left.
#[test]
fn no_python_or_an_old_one_is_said() {
    let Some(rig) = Rig::new() else { return };
    for (variant, words) in [("nopython", "python3.8: is not there"), ("oldpython", "3.6")] {
        let (options, image) = rig.ours(variant);
        let session = rig.open(options);
        let outcome = session.cell("print(1)");
        assert_eq!(
            (outcome.status, outcome.exit_code),
            (Status::Error, None),
            "{outcome:#?}"
        );
        assert_eq!(outcome.kernel, None, "{outcome:#?}");
        let error = outcome.error.unwrap();
        assert!(error.contains(words) && error.contains("3.8"), "{error}");
        crate::rig::wait("nothing to be left", || ours(&image).is_empty());
        let (options, _) = rig.running(variant, &[]);
        let outcome = rig.open(options).cell("print(1)");
        let error = outcome.error.unwrap();
        assert!(error.contains(words) && error.contains("3.8"), "{error}");
    }
    rig.close();
}

/// The image's credentials are not the cell's; commands have them, for they are the target's own.
#[test]
fn credentials_of_an_image_are_not_the_cells() {
    let Some(rig) = Rig::new() else { return };
    let (options, _) = rig.ours("secrets");
    let session = rig.open(options);
    let code = "import os\nfrom hermes_tools import terminal\nprint(*[os.environ.get(n) for n in ('API_KEY', 'POSTGRES_PASSWORD', 'PLAIN')])\nprint(len(terminal('printf %s \"$API_KEY\"')['output'].strip()))";
    assert_eq!(session.ok(code), "None None visible\n27\n");
    assert!(
        !session
            .ok("print(terminal('echo $API_KEY')['output'])")
            .contains("k3y-of-the-image")
    );
    rig.close();
}

/// As most images start: the program itself is PID 1, and takes note of nobody's end.
#[test]
fn a_first_process_that_reaps_nobody_keeps_no_zombies() {
    let Some(rig) = Rig::new() else { return };
    let (options, name) = rig.running("base", &["--init=false"]);
    for transport in [Transport::Stream, Transport::Polled] {
        let mut options = options.clone();
        options.transport = transport;
        let session = rig.open(options);
        session.ok("import os\nif os.fork() == 0: os._exit(0)");
        session.ok("from hermes_tools import terminal\nassert terminal('(sleep 0.1 &) ; true')['exit_code'] == 0");
        drop(session);
    }
    rig.close();
    let first = first_process(&name).to_string();
    let statuses = std::fs::read_dir("/proc").unwrap().flatten();
    let statuses = statuses.filter_map(|entry| std::fs::read_to_string(entry.path().join("status")).ok());
    let children = statuses.filter(|status| status.lines().any(|line| line.split_whitespace().eq(["PPid:", &first])));
    assert_eq!(children.collect::<Vec<_>>(), Vec::<String>::new());
}
