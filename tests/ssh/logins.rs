//! Login shells of every kind, and start-up files that were not written for commands.

use std::path::Path;

use talaria_broker::session::{Cell, SessionOptions};

use crate::account::Account;
use crate::rig::Rig;
use crate::sessions::succeeded;

/// Shells that an account may have.
const SHELLS: [&str; 9] = [
    "/bin/sh",
    "/bin/bash",
    "/bin/dash",
    "/usr/bin/zsh",
    "/usr/bin/fish",
    "/usr/bin/tcsh",
    "/usr/bin/csh",
    "/usr/bin/ksh",
    "/usr/bin/mksh",
];

/// Uses all that a session has; prints the account's name and what is not as it should be.
const ALL: &str = "
import getpass, os
from hermes_tools import read_file, terminal, write_file
kept = os.getcwd()
print(getpass.getuser())
def see(what, seen, wanted):
    if seen != wanted: print(what, repr(seen), repr(wanted))
see('folder', kept, os.path.expanduser('~'))
see('terminal', terminal('pwd; echo $((6 * 7)); export LATER=1; cd /usr')['output'], kept + '\\n42\\n')
written = write_file('~/a file.txt', 'text\\n')
see('written', written.get('resolved_path'), kept + '/a file.txt')
see('read', read_file('~/a file.txt', raw=True).get('content'), 'text\\n')
see('missing', 'error' in read_file('no such file'), True)
";
const LATER: &str =
    "see('later', terminal('pwd; echo $LATER')['output'], '/usr\\n1\\n'); see('kept', os.getcwd(), kept)";

/// A session of that account's.
pub(crate) fn as_account(rig: &Rig, account: &Account) -> SessionOptions {
    let mut ssh = rig.ssh_options();
    ssh.destination = format!("{}@{}", account.name, ssh.destination);
    rig.options_of(ssh)
}

/// Runs whole sessions of these accounts, side by side, and sees that nothing is left of them.
fn whole_sessions(rig: &Rig, accounts: &[(&str, Account)]) {
    for some in accounts.chunks(4) {
        let sessions: Vec<_> = some
            .iter()
            .map(|(_, account)| rig.open(as_account(rig, account)))
            .collect();
        for code in [ALL, LATER] {
            let cells: Vec<_> = sessions.iter().map(|session| session.start(Cell::new(code))).collect();
            for (cell, (shell, account)) in cells.into_iter().zip(some) {
                let printed = succeeded(cell.wait());
                let expected = if code == ALL {
                    format!("{}\n", account.name)
                } else {
                    String::new()
                };
                assert_eq!(printed, expected, "{shell}");
            }
        }
    }
    rig.close();
    for (_, account) in accounts {
        account.nothing_is_left();
    }
}

/// Puts something into the start-up files of an account's shell.
fn starts_with(account: &Account, shell: &str, text: &str) {
    let file = match shell.rsplit('/').next().unwrap() {
        "bash" => ".bashrc",
        "zsh" => ".zshenv",
        "fish" => ".config/fish/config.fish",
        "csh" | "tcsh" => ".cshrc",
        other => panic!("{other} reads no file"),
    };
    account.file(file, text);
}

#[test]
fn every_login_shell_carries_a_whole_session() {
    let Some(rig) = Rig::new() else { return };
    let mut accounts = Vec::new();
    for shell in SHELLS.into_iter().filter(|shell| Path::new(shell).exists()) {
        let Some(account) = Account::new(&rig, shell) else {
            return;
        };
        accounts.push((shell, account));
    }
    // Programs of its own, under other names, are shells too.
    if Path::new("/usr/bin/busybox").exists() {
        let ash = rig.path("ash");
        std::fs::copy("/usr/bin/busybox", &ash).unwrap();
        let Some(account) = Account::new(&rig, ash.to_str().unwrap()) else {
            return;
        };
        accounts.push(("ash", account));
    }
    whole_sessions(&rig, &accounts);
}

#[test]
fn start_up_files_may_print_and_change_what_they_like() {
    let banner = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&banner, "Permission denied (publickey) to all but staff.\n").unwrap();
    let banner = format!("Banner {}", banner.path().display());
    let Some(rig) = Rig::with(&["PermitTTY no", "PrintMotd yes", "AcceptEnv NOTHING", &banner]) else {
        return;
    };
    let mut accounts = Vec::new();
    for (shell, text) in [
        (
            "/bin/bash",
            "date +%N; printf 'no line end'; printf 'nor here' >&2; stty sane; seq 3000 >&2; umask 000; cd /\n\
             alias cd='echo no' exec='echo no' echo='printf no' eval=false; shopt -s expand_aliases\n\
             PROMPT_COMMAND='echo prompt'; TMOUT=1; readonly TMOUT; export TMOUT; IFS=0\n\
             trap 'echo bye' EXIT; set -e",
        ),
        (
            "/bin/bash",
            "export ENV=/nowhere BASH_ENV=/nowhere PYTHONHOME=/nowhere PYTHONSTARTUP=/x CDPATH=/; set -xv; umask 777",
        ),
        (
            "/usr/bin/zsh",
            "date +%N; printf 'no line end'; printf 'nor here' >&2; stty sane; umask 000; cd /\n\
             alias -g exec='echo no'; setopt xtrace",
        ),
        (
            "/usr/bin/fish",
            "date +%N; printf 'no line end'; stty sane; function cd; echo no; end; nosuchcommand; umask 000",
        ),
        (
            "/usr/bin/tcsh",
            "date +%N; stty sane; alias exec echo no; alias cd echo no; umask 000; cd /; nosuchcommand",
        ),
        (
            "/usr/bin/csh",
            "set prompt = 'x'; stty -a; if ($?prompt == 0) echo x\nset x = (1 2",
        ),
        ("/usr/bin/csh", "set noglob; unsetenv PATH; exit 1"),
    ] {
        if !Path::new(shell).exists() {
            continue;
        }
        let Some(account) = Account::new(&rig, shell) else {
            return;
        };
        starts_with(&account, shell, text);
        accounts.push((text, account));
    }
    whole_sessions(&rig, &accounts);
}

#[test]
fn a_login_shell_that_never_comes_to_the_command_is_named_for_it() {
    let Some(rig) = Rig::new() else { return };
    let cases = [
        (
            "read answer",
            "start-up files of its login shell read from standard input",
        ),
        ("exec sh", "something else takes its place and reads its input"),
        // By then it has begun, or not, on a machine that does much else.
        ("sleep 7", "set a longer ssh_connect_timeout"),
        (
            "exit 3",
            "what runs commands there ran none and ended with 3; the account needs",
        ),
    ];
    let mut running = Vec::new();
    for (text, words) in cases {
        let Some(account) = Account::new(&rig, "/bin/bash") else {
            return;
        };
        starts_with(&account, "bash", text);
        let mut ssh = rig.ssh_options();
        ssh.destination = format!("{}@{}", account.name, ssh.destination);
        if text.starts_with("sleep") {
            ssh.connect_timeout = std::time::Duration::from_secs(2);
        }
        let session = rig.open(rig.options_of(ssh));
        running.push((text, words, session.start(Cell::new("pass")), account));
    }
    for (text, words, cell, account) in running {
        let error = cell.wait().error.unwrap_or_default();
        assert!(error.contains(words), "{text}: {error}");
        account.nothing_is_left();
    }
    rig.close();
}

#[test]
fn a_place_that_is_bare_is_a_place() {
    let Some(rig) = Rig::with(&["PermitUserEnvironment yes", "PermitUserRC yes"]) else {
        return;
    };
    let Some(account) = Account::new(&rig, "/bin/sh") else {
        return;
    };
    // sshd takes this for the environment of the account.
    account.file(
        ".ssh/environment",
        "PATH=/nowhere\nFROM_FILE=seen\nFILE_API_KEY=k-12345678\n",
    );
    account.file(".ssh/rc", "echo from rc; echo from rc >&2\n");
    let session = rig.open(as_account(&rig, &account));
    let printed = session.ok(
        "import os\nfrom hermes_tools import terminal\nprint(os.environ['PATH'], os.environ['FROM_FILE'], \
         'FILE_API_KEY' in os.environ)\nprint(terminal('echo $BASH_VERSION')['output'] != '\\n')\n\
         print(terminal('test $FILE_API_KEY = k-12345678')['exit_code'])",
    );
    assert_eq!(printed, "/nowhere seen False\nTrue\n0\n");
    rig.close();
    // A home that is not there, and one that is closed: the session begins elsewhere.
    std::fs::remove_dir_all(&account.home).unwrap();
    let session = rig.open(as_account(&rig, &account));
    assert_eq!(session.ok("import os; print(os.getcwd())"), "/\n");
    rig.close();
    account.nothing_is_left();
}
