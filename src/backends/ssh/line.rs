//! The one command line that a far login shell gets.
//!
//! `sh`, `bash`, `dash`, `zsh`, `fish`, `csh` and `tcsh` read it alike: what differs between them (quotes, backslashes,
//! `$`, `!`, line ends) is in octal, and a POSIX shell makes a program of it. It begins with the path of that shell: any
//! name, `exec` too, may be an alias there.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use crate::backends::Command;

/// Where interpreters lie that the bare `PATH` of a non-interactive login does not name. Looked at last; what has a star
/// holds one for each version.
const MORE_PLACES: [&str; 20] = [
    "$HOME/.local/bin",
    "$HOME/.pyenv/shims",
    "$HOME/.pyenv/versions/*/bin",
    "$HOME/.local/share/uv/python/*/bin",
    "$HOME/.asdf/shims",
    "$HOME/.local/share/mise/shims",
    "$HOME/miniconda3/bin",
    "$HOME/anaconda3/bin",
    "$HOME/miniforge3/bin",
    "$HOME/mambaforge/bin",
    "$HOME/micromamba/bin",
    "$HOME/.nix-profile/bin",
    "/usr/local/bin",
    "/usr/bin",
    "/bin",
    "/opt/homebrew/bin",
    "/home/linuxbrew/.linuxbrew/bin",
    "/opt/conda/bin",
    "/opt/miniconda3/bin",
    "/run/current-system/sw/bin",
];

/// What a command says on standard error before it begins: this, the number of its process, and when that began, where
/// there is a `/proc`.
const PROCESS: &str = "talaria-process ";
/// Has `/bin/sh` find out when a process began, which is `${20}` then.
const WHEN: &str = "read -r s </proc/{}/stat && s=${s##*) } && set -- $s";

/// The line that starts a command; as another user where `become` names one.
pub(super) fn line(command: &Command, r#become: Option<&str>) -> String {
    let when = WHEN.replace("{}", "$$");
    let mut program = format!("{{ {when}; }} 2>/dev/null; echo \"{PROCESS}$$ ${{20}}\" >&2\n");
    // Start-up files of the shell, or `sudo`, may have left it in a folder that is closed to the account.
    program.push_str("cd 2>/dev/null || cd /\n");
    if let Some(folder) = &command.folder {
        program.push_str(&format!("cd -- {} || exit 126\n", word(folder.as_os_str())));
    }
    program.push_str(&found(&command.program));
    for (name, value) in &command.environment {
        let name = name.to_string_lossy();
        program.push_str(&format!("export {name}={}\n", word(value)));
    }
    program.push_str("exec \"$found\"");
    for argument in &command.arguments {
        program.push(' ');
        program.push_str(&word(argument));
    }
    format!(
        "{} -c 'eval \"$(printf %b \"$1\")\"' sh '{}'",
        shell(r#become),
        octal(&program)
    )
}

/// Finds a program with more places in sight than it will have itself; `~` is the home there.
fn found(program: &OsStr) -> String {
    if let Some(path) = program.as_bytes().strip_prefix(b"~/") {
        return format!("found=\"$HOME\"/{}\n", word(OsStr::from_bytes(path)));
    }
    let name = word(program);
    if program.as_bytes().contains(&b'/') {
        return format!("found={name}\n");
    }
    // Unquoted, so that stars are names of folders, and nothing is split where a home has blanks in it.
    let places = MORE_PLACES.join(" ");
    format!(
        "found=$(command -v -- {name}) || {{ IFS=; p=$PATH; for d in {places}; do p=$p:$d; done; \
         found=$(PATH=$p; command -v -- {name}) || found={name}; }}\n"
    )
}

/// The line that says what tells one start of the host from another, and hosts from each other. No program is needed for
/// it.
pub(super) const BOOT_ID: &str = "/bin/sh -c 'read -r boot </proc/sys/kernel/random/boot_id; \
    read -r host </proc/sys/kernel/hostname; echo; echo talaria-boot $boot $host'";

/// What that line said: the start, and the name of the host. Start-up files of the shell may have printed before it.
pub(super) fn boot_id(printed: &str) -> (String, String) {
    let found = printed
        .lines()
        .rev()
        .find_map(|line| line.strip_prefix("talaria-boot "));
    let mut words = found.unwrap_or_default().split_whitespace().map(str::to_owned);
    (words.next().unwrap_or_default(), words.next().unwrap_or_default())
}

/// The line that kills a process with all of its group; as whoever it runs as.
pub(super) fn kill(process: &Numbered, r#become: Option<&str>) -> String {
    format!("{} -c '{}'", shell(r#become), kill_group(process.number))
}

/// The same over another connection, which need not lead to the same host: only if that process began when this one did.
pub(super) fn kill_elsewhere(process: &Numbered, r#become: Option<&str>) -> Option<String> {
    let began = process.began?;
    let when = WHEN.replace("{}", &process.number.to_string());
    Some(format!(
        "{} -c '{when} && test \"${{20}}\" = {began} && {{ {}; }}'",
        shell(r#become),
        kill_group(process.number)
    ))
}

fn kill_group(number: u32) -> String {
    // sshd makes each command the leader of a group; one that `sudo` started may be in another's.
    format!("kill -9 -{number} || kill -9 {number}")
}

/// A POSIX shell, of another account where one is named.
fn shell(r#become: Option<&str>) -> String {
    match r#become {
        None => "/bin/sh".to_owned(),
        // `-H`: its own home; `-n`: nobody is there to type a password.
        Some(user) => format!("sudo -n -H -u {user} -- /bin/sh"),
    }
}

/// A process over there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Numbered {
    number: u32,
    began: Option<u64>,
}

impl Numbered {
    /// Reads what a command said, if that is it. What was said before may have ended without a line end.
    pub(super) fn read(line: &str) -> Option<Self> {
        let (_, told) = line.rsplit_once(PROCESS)?;
        let mut words = told.split_whitespace();
        Some(Self {
            number: words.next()?.parse().ok()?,
            began: words.next().and_then(|began| began.parse().ok()),
        })
    }
}

/// A word for a POSIX shell. Bytes stand as characters of the same number, which [`octal`] turns back.
fn word(text: &OsStr) -> String {
    let text: String = text.as_bytes().iter().map(|byte| char::from(*byte)).collect();
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// What no shell alters, for `printf %b`.
fn octal(program: &str) -> String {
    let mut line = String::with_capacity(program.len() * 2);
    for c in program.chars() {
        if c.is_ascii_alphanumeric() || "_-./=:,".contains(c) {
            line.push(c);
        } else {
            line.push_str(&format!("\\0{:03o}", u32::from(c)));
        }
    }
    line
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing test may panic")]
mod tests {
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    const SHELLS: [&[&str]; 10] = [
        &["sh"],
        &["bash"],
        &["dash"],
        &["zsh"],
        &["fish"],
        &["csh"],
        &["tcsh"],
        &["ksh"],
        &["mksh"],
        &["busybox", "sh"],
    ];

    /// What a shell prints; `None` only where it is not installed.
    fn output(shell: &[&str], line: &str) -> Option<Vec<u8>> {
        let places = std::env::var_os("PATH").unwrap_or_default();
        let is_there = |folder: std::path::PathBuf| folder.join(shell[0]).exists();
        if !std::env::split_paths(&places).any(is_there) {
            return None;
        }
        let mut command = std::process::Command::new(shell[0]);
        Some(command.args(&shell[1..]).arg("-c").arg(line).output().unwrap().stdout)
    }

    #[test]
    fn every_shell_reads_it_alike() {
        let odd = [
            "",
            "a b",
            "'\"",
            "$HOME `x` $(y)",
            "!! !x",
            "\\ \\n \\0141 %b",
            "*?[a]{b,c}~",
            "é\n;&|<>#",
            "-n",
        ];
        let mut arguments: Vec<OsString> = ["%s|"].into_iter().chain(odd).map(OsString::from).collect();
        arguments.push(OsString::from_vec(b"\xff\xfe".to_vec()));
        let command = Command {
            program: "printf".into(),
            arguments,
            environment: [("ODD".into(), "it's $X".into())].into(),
            folder: Some("/usr".into()),
            input: Default::default(),
        };
        let mut expected: Vec<u8> = odd.iter().flat_map(|word| [word.as_bytes(), b"|"].concat()).collect();
        expected.extend(b"\xff\xfe|");
        let line = line(&command, None);
        assert!(!line.contains('\n') && line.is_ascii());
        let mut seen = 0;
        for shell in SHELLS {
            if let Some(printed) = output(shell, &line) {
                assert_eq!(
                    String::from_utf8_lossy(&printed),
                    String::from_utf8_lossy(&expected),
                    "{shell:?}"
                );
                let boot = boot_id(&String::from_utf8_lossy(&output(shell, BOOT_ID).unwrap()));
                let known = ["random/boot_id", "hostname"].map(|name| {
                    let known = std::fs::read_to_string(format!("/proc/sys/kernel/{name}"));
                    known.unwrap_or_default().trim().to_owned()
                });
                assert_eq!(<[String; 2]>::from(boot), known, "{shell:?}");
                seen += 1;
            }
        }
        assert!(seen > 0);
    }

    #[test]
    fn a_process_is_killed_over_another_connection_only_if_it_is_the_same() {
        let mut sleep = std::process::Command::new("sleep").arg("99").spawn().unwrap();
        let number = sleep.id();
        let stat = std::fs::read_to_string(format!("/proc/{number}/stat")).unwrap();
        let began: u64 = stat
            .rsplit(") ")
            .next()
            .unwrap()
            .split(' ')
            .nth(19)
            .unwrap()
            .parse()
            .unwrap();
        for shell in SHELLS {
            let another = Numbered {
                number,
                began: Some(began + 1),
            };
            output(shell, &kill_elsewhere(&another, None).unwrap());
            assert!(sleep.try_wait().unwrap().is_none(), "{shell:?}");
        }
        let same = Numbered::read(&format!("motd{PROCESS}{number} {began}\n")).unwrap();
        output(&["sh"], &kill_elsewhere(&same, None).unwrap()).unwrap();
        assert_eq!(sleep.wait().unwrap().code(), None);
        let unknown = Numbered::read(&format!("{PROCESS}{number} \n")).unwrap();
        assert_eq!(kill_elsewhere(&unknown, None), None);
    }

    #[test]
    fn a_program_is_found_where_a_bare_path_does_not_lead() {
        let home = tempfile::Builder::new().prefix("a home").tempdir().unwrap();
        let run = |program: &str, path: &str| {
            let command = Command {
                program: program.into(),
                arguments: Vec::new(),
                environment: [].into(),
                folder: None,
                input: Default::default(),
            };
            let mut shell = std::process::Command::new("/bin/sh");
            shell.arg("-c").arg(line(&command, None));
            let output = shell.env_clear().env("HOME", home.path()).env("PATH", path).output();
            String::from_utf8(output.unwrap().stdout).unwrap()
        };
        let places = [
            ".local/bin",
            ".pyenv/versions/3.12.1/bin",
            ".local/share/uv/python/cpython-3.13/bin",
            "miniconda3/bin",
            "my venv/bin",
        ];
        for (number, place) in places.iter().enumerate() {
            let folder = home.path().join(place);
            std::fs::create_dir_all(&folder).unwrap();
            let program = folder.join(format!("talaria-python-{number}"));
            std::fs::write(&program, format!("#!/bin/sh\necho {place} $PATH\n")).unwrap();
            std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        }
        for (number, place) in places[..4].iter().enumerate() {
            let found = run(&format!("talaria-python-{number}"), "/nowhere");
            assert_eq!(found, format!("{place} /nowhere\n"));
        }
        assert_eq!(
            run("~/my venv/bin/talaria-python-4", "/nowhere"),
            "my venv/bin /nowhere\n"
        );
        // What the PATH has comes first.
        let first = home.path().join("miniconda3/bin");
        std::fs::write(first.join("talaria-python-0"), "#!/bin/sh\necho first\n").unwrap();
        std::fs::set_permissions(
            first.join("talaria-python-0"),
            std::os::unix::fs::PermissionsExt::from_mode(0o755),
        )
        .unwrap();
        assert_eq!(run("talaria-python-0", first.to_str().unwrap()), "first\n");
    }

    #[test]
    fn folder_environment_and_a_missing_program() {
        let shown = |program: &str, folder: &str| {
            let command = Command {
                program: program.into(),
                arguments: vec!["-c".into(), "pwd; echo $ODD".into()],
                environment: [("ODD".into(), "it's".into())].into(),
                folder: Some(folder.into()),
                input: Default::default(),
            };
            std::process::Command::new("sh")
                .arg("-c")
                .arg(line(&command, None))
                .output()
                .unwrap()
        };
        assert_eq!(shown("sh", "/usr").stdout, b"/usr\nit's\n");
        assert_eq!(shown("/bin/sh", "/usr").stdout, b"/usr\nit's\n");
        let missing = shown("no-such-python", "/usr");
        assert_eq!(missing.status.code(), Some(127));
        let said = String::from_utf8_lossy(&missing.stderr).trim_end().to_owned();
        assert!(said.ends_with("no-such-python: not found"), "{said}");
        assert!(!said.contains("\\0"), "{said}");
        assert_eq!(shown("/no/such/python", "/usr").status.code(), Some(127));
        assert_eq!(shown("sh", "/no/such/folder").status.code(), Some(126));
    }
}
