//! What a script gets to see of its broker, and who gets to see what a session leaves lying about.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{CWD, RenameFlags};
use serde_json::Value;
use talaria_broker::outcome::Status;
use talaria_broker::socket_rpc::Transport;

use crate::observe::{wait_until, with_mark};
use crate::rig::{HANG, Rig};
use crate::{Case, cases};

pub(crate) const CASES: &[Case] = cases![
    what_is_named_passes_and_credentials_never,
    withheld_values_are_masked,
    no_way_to_the_secrets_of_the_broker_as_its_user,
    the_initial_environment_of_the_broker_is_wiped,
    descriptors_of_the_broker_are_not_inherited,
    no_command_line_shows_a_script_or_a_token,
    files_of_a_session_are_private,
    links_planted_in_the_session_folder_are_not_followed,
    a_folder_taken_over_by_another_user_is_not_used,
    a_session_sees_nothing_of_another,
    a_poisoned_environment_does_no_harm,
];

/// The environment and the socket of this machine.
pub(crate) const CASES_HERE: &[Case] = cases![
    a_cell_gets_what_is_listed_and_nothing_else,
    a_command_gets_everything_but_secrets,
    dropped_hermes_names_are_logged_once,
    calls_need_the_token,
    the_tcp_port_refuses_strangers,
];

const SECRET: &str = "tr0ub4dor-and-3";

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn names(value: &Value) -> Vec<&str> {
    let mut names: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
    names.sort_unstable();
    names
}

const EXPOSED: [(&str, &str); 12] = [
    ("USER", "u"),
    ("LC_TIME", "C"),
    ("XDG_DATA_HOME", "/x"),
    ("XDG_SESSION_TOKEN", SECRET),
    ("HERMES_HOME", "/hermes"),
    ("HERMES_PROFILE", "p"),
    ("HERMES_YOLO", "1"),
    ("https_proxy", "http://bob:hunter2@proxy:3128"),
    ("API_KEY", SECRET),
    ("DATABASE_URL", "postgres://x"),
    ("EDITOR", "vi"),
    ("LD_PRELOAD", ""),
];

fn a_cell_gets_what_is_listed_and_nothing_else(rig: &Rig) {
    let session = rig.session_with(|options| rig.among(options, EXPOSED));
    let seen = json(&session.ok("import json, os; print(json.dumps(dict(os.environ)))"));
    let mut expected = vec![
        "PATH",
        "HOME",
        "TMPDIR",
        "LANG",
        "USER",
        "LC_TIME",
        "XDG_DATA_HOME",
        "XDG_RUNTIME_DIR",
        "HERMES_HOME",
        "HERMES_PROFILE",
        "https_proxy",
        "HERMES_RPC_SOCKET",
        "HERMES_RPC_CELL",
        "PYTHONPATH",
        "PYTHONUTF8",
        "MPLBACKEND",
    ];
    expected.sort_unstable();
    assert_eq!(names(&seen), expected);
    assert_eq!(seen["https_proxy"], "http://proxy:3128");
    assert_eq!(seen["MPLBACKEND"], "Agg");
    let children = json(&session.ok(
        "import subprocess, sys\nprint(subprocess.run([sys.executable, '-c', 'import json, os; print(json.dumps(dict(os.environ)))'], capture_output=True, text=True).stdout)",
    ));
    assert!(
        names(&children)
            .iter()
            .all(|name| expected.contains(name) || *name == "LC_CTYPE"),
        "{children}"
    );
}

fn a_command_gets_everything_but_secrets(rig: &Rig) {
    let more = [
        ("SSH_AUTH_SOCK", "/agent"),
        ("GIT_AUTHOR_NAME", "me"),
        ("TOKENIZERS_PARALLELISM", "false"),
        ("MY_WEBHOOK", SECRET),
    ];
    let session = rig.session_with(|options| rig.among(options, EXPOSED.into_iter().chain(more)));
    let printed =
        session.ok("from hermes_tools import terminal\nprint(terminal('env -0 | tr \"\\\\0\" \"\\\\n\"')['output'])");
    let value = |name: &str| printed.lines().find_map(|line| line.strip_prefix(&format!("{name}=")));
    for (name, expected) in [
        ("SSH_AUTH_SOCK", Some("/agent")),
        ("GIT_AUTHOR_NAME", Some("me")),
        ("TOKENIZERS_PARALLELISM", Some("false")),
        ("DATABASE_URL", Some("postgres://x")),
        ("EDITOR", Some("vi")),
        ("HERMES_HOME", Some("/hermes")),
        ("https_proxy", Some("http://bob:hunter2@proxy:3128")),
        ("HERMES_YOLO", None),
        ("API_KEY", None),
        ("MY_WEBHOOK", None),
        ("XDG_SESSION_TOKEN", None),
        ("HERMES_RPC_SOCKET", None),
    ] {
        assert_eq!(value(name), expected, "{name} in {printed}");
    }
}

fn what_is_named_passes_and_credentials_never(rig: &Rig) {
    let code =
        "import os; print(*[os.environ.get(n) for n in ('MY_TOKEN', 'MODAL_TOKEN_SECRET', 'AGENTS_KEY', 'GIVEN')])";
    let session = rig.session_with(|options| {
        rig.among(
            options,
            [
                ("MY_TOKEN", "mine"),
                ("MODAL_TOKEN_SECRET", SECRET),
                ("AGENTS_KEY", "k"),
            ],
        );
        options.passes.env_passthrough = vec!["MY_TOKEN".into(), "MODAL_TOKEN_SECRET".into(), "AGENTS_KEY".into()];
        options.passes.protected = vec!["AGENTS_KEY".into()];
    });
    assert_eq!(session.ok(code), "mine None None None\n");
    let output = rig
        .cli(["run", "--env", "MY_TOKEN", "--env", "GIVEN=x", "-c", code])
        .env("MY_TOKEN", "mine")
        .run();
    assert_eq!(output.stdout, "mine None None x\n", "{output:?}");
    let refused = rig
        .cli(["run", "--env", "MODAL_TOKEN_SECRET", "-c", code])
        .env("MODAL_TOKEN_SECRET", SECRET)
        .run();
    assert_eq!(refused.code(), 2, "{refused:?}");
    assert!(
        refused.stderr.contains("MODAL_TOKEN_SECRET") && !refused.stderr.contains(SECRET),
        "{refused:?}"
    );
}

fn dropped_hermes_names_are_logged_once(rig: &Rig) {
    let output = rig
        .cli(["-v", "run", "-c", "1", "-c", "2"])
        .env("HERMES_YOLO", "1")
        .env("HERMES_B_KEY", SECRET)
        .run();
    let lines: Vec<&str> = output
        .stderr
        .lines()
        .filter(|line| line.contains("execute_code: dropped"))
        .collect();
    assert!(!lines.is_empty() && lines.len() == 1, "{lines:#?}");
    assert!(
        lines[0].contains("dropped 2 non-allowlisted HERMES_* var(s)"),
        "{lines:?}"
    );
    assert!(
        lines[0].contains("HERMES_YOLO") && lines[0].contains("env_passthrough"),
        "{lines:?}"
    );
    assert!(!output.stderr.contains(SECRET), "{output:?}");
}

fn withheld_values_are_masked(rig: &Rig) {
    let session = rig.session_with(|options| {
        rig.among(
            options,
            [
                ("API_KEY", SECRET),
                ("POSTGRES_PASSWORD", "postgres"),
                ("DB", "postgres"),
            ],
        );
    });
    let code = format!(
        "s = '{}' + '{}'\nprint(s, 'postgres')\nraise ValueError(s)",
        &SECRET[..5],
        &SECRET[5..]
    );
    let outcome = session.cell(code);
    assert_eq!(outcome.status, Status::Error);
    let shown = serde_json::to_string(&outcome).unwrap();
    assert!(!shown.contains(SECRET), "{shown}");
    assert!(outcome.output.contains(" postgres\n"), "{outcome:#?}");
    // A hint repeats a tool's error, cut short: never within a secret.
    for blocks in 125..150 {
        let code = format!(
            "from hermes_tools import read_file\nread_file('a/' * {blocks} + '{}' + '{}' + '/b' * 200)['content']",
            &SECRET[..5],
            &SECRET[5..]
        );
        let hint = session.cell(code).hint.unwrap_or_default();
        assert!(hint.starts_with("read_file failed: "), "{hint}");
        assert!(!hint.contains(&SECRET[..4]), "{hint}");
    }
    // What a tool is given and gives back is never altered.
    let code = format!(
        "from hermes_tools import terminal\ns = '{}' + '{}'\nprint(terminal('printf %s ' + s)['output'] == s)",
        &SECRET[..5],
        &SECRET[5..]
    );
    assert_eq!(session.ok(&code), "True\n");
}

/// Looks into every process that it can look into.
const SNOOP: &str = r"
import glob, os
found = []
for folder in glob.glob('/proc/[0-9]*'):
    for name in ('environ', 'cmdline', 'maps'):
        try:
            data = open(folder + '/' + name, 'rb').read()
        except OSError:
            continue
        if MARK in data: found.append((folder, name))
print(found)
";

/// A value that no other test has, and the script that looks for it.
fn snoop(rig: &Rig) -> (String, String) {
    let own = rig.scratch().file_name().unwrap().to_str().unwrap();
    let script = format!("MARK = b'sec' + b'ret-{own}'\n{SNOOP}");
    (format!("secret-{own}"), script)
}

fn no_way_to_the_secrets_of_the_broker_as_its_user(rig: &Rig) {
    let (secret, snoop) = snoop(rig);
    let output = match rig.other_user() {
        Some(user) => {
            let cli = user.cli(rig, ["run", "-"]).env("API_KEY", &secret).stdin(snoop);
            cli.through(user.prefix()).run()
        }
        None => rig.cli(["run", "-"]).env("API_KEY", &secret).stdin(snoop).run(),
    };
    assert_eq!(output.stdout, "[]\n", "{output:?}");
}

fn the_initial_environment_of_the_broker_is_wiped(rig: &Rig) {
    let (secret, snoop) = snoop(rig);
    let output = rig.cli(["run", "-"]).env("API_KEY", &secret).stdin(snoop).run();
    assert_eq!(output.stdout, "[]\n", "{output:?}");
}

fn descriptors_of_the_broker_are_not_inherited(rig: &Rig) {
    std::fs::write(rig.scratch().join("a-secret-file"), SECRET).unwrap();
    let code = "import os\nfrom hermes_tools import terminal
print([os.readlink('/proc/self/fd/' + fd) for fd in os.listdir('/proc/self/fd') if os.path.exists('/proc/self/fd/' + fd)])
print(terminal('ls -l /proc/self/fd')['output'])";
    let line = format!(
        "exec 7<{0} 200<{0}; exec \"$0\" \"$@\"",
        rig.scratch().join("a-secret-file").display()
    );
    let output = rig.cli(["run", "-c", code]).through(["bash", "-c", &line]).run();
    assert_eq!(output.code(), 0, "{output:?}");
    assert!(!output.stdout.contains("a-secret-file"), "{output:?}");
}

fn no_command_line_shows_a_script_or_a_token(rig: &Rig) {
    let session = rig.session();
    let seen = session.ok(
        "from hermes_tools import terminal\nimport hermes_tools\nmarker = 'unmistakable-' + 'script'
terminal('sleep 300 >/dev/null 2>&1 & : unmistakable-command')
print(terminal('cat /proc/[0-9]*/cmdline | tr \"\\\\0\" \" \" | grep -ao \"unmistakable-[a-z]*\"')['output'])
print(hermes_tools._TOKEN)",
    );
    let token = seen.lines().last().unwrap();
    assert_eq!(token.len(), 32);
    assert!(
        !seen.contains("unmistakable-script") && !seen.contains("unmistakable-command"),
        "{seen}"
    );
    for process in with_mark(rig.scratch().to_str().unwrap()) {
        assert!(!process.command.contains(token), "{process:?}");
    }
}

/// The folder of a session.
const FOLDER: &str = "import os\nfolder = os.path.dirname(os.environ.get('HERMES_RPC_SOCKET') or os.environ['HERMES_RPC_DIR'])\nprint(folder)";

fn files_of_a_session_are_private(rig: &Rig) {
    let session = rig.session();
    session.ok("import os\nos.umask(0)\nfrom hermes_tools import terminal\nterminal('umask 0; true')\nprint('x')");
    session.ok("print('y' * 100_000)");
    fn look(folder: &std::path::Path, seen: &mut usize) {
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            let meta = std::fs::symlink_metadata(entry.path()).unwrap();
            // A link has no mode of its own.
            assert!(
                meta.is_symlink() || meta.permissions().mode() & 0o077 == 0,
                "{}: {:o}",
                entry.path().display(),
                meta.mode()
            );
            *seen += 1;
            if meta.is_dir() {
                look(&entry.path(), seen);
            }
        }
    }
    let mut seen = 0;
    look(&rig.tmp(), &mut seen);
    let folder = session.ok(FOLDER);
    look(&session.as_seen_here(folder.trim()), &mut seen);
    assert!(seen > 4, "{seen}");
}

fn links_planted_in_the_session_folder_are_not_followed(rig: &Rig) {
    let prey = rig.scratch().join("prey");
    std::fs::create_dir(&prey).unwrap();
    let session = rig.session();
    session.ok(&format!(
        "import os, shutil\nfolder = os.path.dirname(os.environ.get('HERMES_RPC_SOCKET') or os.environ['HERMES_RPC_DIR'])
for name in ('lib', 'cells', 'jobs'):
    shutil.rmtree(folder + '/' + name, ignore_errors=True)
    os.symlink('{0}', folder + '/' + name)",
        prey.display()
    ));
    let outcome = session.cell("from hermes_tools import terminal\nprint(terminal('echo on'))\nraise ValueError('x')");
    assert!(outcome.kernel.is_some(), "{outcome:#?}");
    let planted: Vec<_> = std::fs::read_dir(&prey).unwrap().flatten().collect();
    assert!(planted.is_empty(), "{planted:?}");
}

/// Something takes the place of a session's folder that a script removed; nothing may be put into it.
fn taken_over(rig: &Rig, name: &str, plant: impl FnOnce(&Path), planted_in: impl FnOnce(&Path) -> File) {
    let session = rig.session();
    let folder = session.ok(FOLDER);
    let folder = session.as_seen_here(folder.trim());
    // On the same disk, which may be one that only the target has.
    let planted = folder.with_file_name(name);
    plant(&planted);
    let prey = planted_in(&planted);
    // Parts of it may be made anew meanwhile.
    session.ok("import shutil\nshutil.rmtree(folder, ignore_errors=True)");
    // At once: whoever makes the folder anew does so as soon as the name is free.
    let rename = |flags| rustix::fs::renameat_with(CWD, &planted, CWD, &folder, flags).is_ok();
    assert!(wait_until(HANG, || rename(RenameFlags::EXCHANGE) || rename(RenameFlags::NOREPLACE)));
    let remove = |path: &Path| std::fs::remove_file(path).or_else(|_| std::fs::remove_dir_all(path));
    // What was there, if anything.
    remove(&planted).ok();
    let outcome = session.cell("from hermes_tools import terminal\nprint(terminal('echo on')['output'])");
    // Where the session went on without its folder, that may be gone with its container.
    let prey = std::fs::read_dir(format!("/proc/self/fd/{}", prey.as_raw_fd())).unwrap();
    let prey: Vec<_> = prey.flatten().collect();
    assert!(prey.is_empty(), "{prey:?} {outcome:#?}");
    // Gone already where another name is used.
    remove(&folder).ok();
    assert_eq!(
        session.ok("from hermes_tools import terminal\nprint(terminal('echo on')['output'])"),
        "on\n\n"
    );
}

fn a_folder_taken_over_by_another_user_is_not_used(rig: &Rig) {
    let prey = rig.scratch().join("prey");
    std::fs::create_dir(&prey).unwrap();
    let link = |path: &Path| std::os::unix::fs::symlink(&prey, path).unwrap();
    taken_over(rig, "planted-link", link, |_| File::open(&prey).unwrap());
    if rustix::process::geteuid().is_root() {
        let taken = |path: &Path| {
            std::fs::create_dir(path).unwrap();
            std::os::unix::fs::chown(path, Some(4_000_000), None).unwrap();
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).unwrap();
        };
        taken_over(rig, "planted-folder", taken, |path| File::open(path).unwrap());
    }
}

/// Speaks to the socket as a script could that has no stub.
const STRANGER: &str = r"
import json, os, socket
address = os.environ['HERMES_RPC_SOCKET']
def ask(request):
    if address.startswith('tcp:'):
        host, port = address[4:].rsplit(':', 1)
        s = socket.create_connection((host, int(port)))
    else:
        s = socket.socket(socket.AF_UNIX); s.connect(address)
    body = json.dumps(request).encode()
    s.sendall(len(body).to_bytes(4, 'big') + body)
    data = b''
    while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], 'big'):
        more = s.recv(65536)
        if not more: break
        data += more
    return json.loads(data[4:])
import hermes_tools
token, cell = hermes_tools._TOKEN, int(os.environ['HERMES_RPC_CELL'])
for bad in ('', token[:-1], token + '0', token.upper() + 'x', '0' * 32, None, 5, [token]):
    answer = ask([bad, cell, 'terminal', {'command': 'touch was-here'}])
    assert 'error' in answer and answer.get('exit_code') is None, (bad, answer)
assert 'error' in ask([token, cell + 1, 'terminal', {'command': 'touch was-here'}])
print(os.path.exists('was-here'), ask([token, cell, 'terminal', {'command': 'echo on'}])['output'])
";

fn calls_need_the_token(rig: &Rig) {
    assert_eq!(rig.session().ok(STRANGER), "False on\n\n");
}

fn the_tcp_port_refuses_strangers(rig: &Rig) {
    let session = rig.session_with(|options| options.rpc = Transport::Tcp);
    assert_eq!(session.ok(STRANGER), "False on\n\n");
    let address = session.ok("import os; print(os.environ['HERMES_RPC_SOCKET'])");
    assert!(address.starts_with("tcp:127.0.0.1:"), "{address}");
}

fn a_session_sees_nothing_of_another(rig: &Rig) {
    let (one, two) = (rig.session(), rig.session());
    one.ok("kept = 1\nimport os, sys\nos.environ['LEFT'] = '1'\nsys.left = 1\nfrom hermes_tools import terminal\nterminal('cd /; export LEFT=1')");
    let seen = two.ok("import os, sys\nfrom hermes_tools import terminal
print('kept' in globals(), 'LEFT' in os.environ, hasattr(sys, 'left'), terminal('echo $PWD$LEFT')['output'])");
    assert_eq!(seen, format!("False False False {}\n\n", rig.work().display()));
    let token = "import hermes_tools; print(hermes_tools._TOKEN)";
    assert_ne!(one.ok(token), two.ok(token));
}

fn a_poisoned_environment_does_no_harm(rig: &Rig) {
    let bad = rig.file(
        "bad/sitecustomize.py",
        "import os\nos.write(1, b'poison')\nraise SystemExit(3)",
    );
    rig.file("bad/json.py", "raise RuntimeError('poison')");
    let folder = bad.parent().unwrap().to_str().unwrap();
    let more = [
        ("PYTHONPATH", folder),
        ("PYTHONHOME", "/nonexistent"),
        ("PYTHONSTARTUP", "/nonexistent"),
        ("PYTHONINSPECT", "1"),
        ("PYTHONOPTIMIZE", "2"),
        ("PYTHONDONTWRITEBYTECODE", "1"),
        ("PYTHONWARNINGS", "error"),
        ("PYTHONIOENCODING", "utf-16"),
        ("PYTHONUSERBASE", "/nonexistent"),
        ("LD_PRELOAD", "/nonexistent.so"),
        ("BASH_ENV", "/nonexistent"),
    ];
    let session = rig.session_with(|options| rig.among(options, more));
    let outcome = session
        .cell("import sys\nfrom hermes_tools import read_file\nassert __debug__\nprint('on', sys.flags.inspect)");
    assert_eq!(
        (outcome.status, outcome.output.as_str()),
        (Status::Success, "on 0\n"),
        "{outcome:#?}"
    );
    assert!(outcome.notice.is_none(), "{outcome:#?}");
}
