//! A command as a line for a shell whose standard input and output are text: both ways in base64, its two streams and its
//! status apart in one text.
//!
//! `sh` and `base64` are all that is needed there. The line holds nothing secret: variables come with the standard input.

use std::ffi::OsStr;
use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, STANDARD};

use crate::backends::Command;

/// What was written there in parts may end early.
const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// The longest line: what a kernel takes as one argument.
const LONGEST: usize = 120_000;

/// A command that can be sent.
#[derive(Debug)]
pub(super) struct Wrapped {
    /// The line for the shell.
    pub(super) line: String,
    /// Its standard input.
    pub(super) input: String,
    mark: String,
}

/// What a command came to.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Finished {
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: Vec<u8>,
    pub(super) status: i32,
}

impl Wrapped {
    /// Wraps a command; `mark` is a word that nobody knows beforehand.
    ///
    /// # Errors
    /// As a sentence, where it cannot be written as text, or is too long.
    pub(super) fn new(command: &Command, variables: &[(String, String)], mark: &str) -> Result<Self, String> {
        let mut run = String::new();
        if let Some(folder) = &command.folder {
            let _ = write!(run, "cd -- {}&&", word(folder.as_os_str())?);
        }
        run.push_str(&word(&command.program)?);
        for argument in &command.arguments {
            run.push(' ');
            run.push_str(&word(argument)?);
        }
        let mut exports = String::new();
        let of_command = command
            .environment
            .iter()
            .map(|(name, value)| (name.as_os_str(), value.as_os_str()));
        let variables = variables
            .iter()
            .map(|(name, value)| (OsStr::new(name), OsStr::new(value)));
        for (name, value) in variables.chain(of_command) {
            let _ = writeln!(exports, "export {}={}", variable(name)?, word(value)?);
        }
        let mut input = String::new();
        let mut set = "";
        if !exports.is_empty() {
            STANDARD.encode_string(&exports, &mut input);
            input.push('\n');
            // `read` takes no more of a pipe than its line. They are set for the command alone: a `PATH` of its own need
            // not lead to `base64`.
            set = r#"IFS= read -r v;v=$(printf %s "$v"|base64 -d);"#;
            run.insert_str(0, r#"eval "$v";"#);
        }
        STANDARD.encode_string(&command.input, &mut input);
        // Output goes straight to descriptor 3 while it runs; what is gathered in `r` is the rest: what it writes to its
        // standard error, and, at any place of that, the status. What it leaves running has none of these descriptors.
        let line = format!(
            "{set}printf %s '{mark}{{';exec 3>&1;r=$(exec 4>&1;{{ base64 -d|{{ {{ {run};}} 3>&- 4>&-;printf '<%d>' $? >&4;}}|\
             base64 >&3;}} 2>&1|base64);printf '|%s}}%s' \"$r\" {mark}"
        );
        if line.len() > LONGEST {
            return Err(format!(
                "its command line would have {} bytes, and may have {LONGEST}",
                line.len()
            ));
        }
        let mark = mark.to_owned();
        Ok(Self { line, input, mark })
    }

    /// What the command came to, as its output says it; `None` where that is not whole.
    pub(super) fn unwrap(&self, output: &str) -> Option<Finished> {
        let (_, rest) = output.split_once(&format!("{}{{", self.mark))?;
        let (all, _) = rest.rsplit_once(&format!("}}{}", self.mark))?;
        let (stdout, rest) = all.rsplit_once('|')?;
        let (before, rest) = rest.split_once('<')?;
        let (status, after) = rest.split_once('>')?;
        Some(Finished {
            stdout: decoded(stdout)?,
            stderr: decoded(&[before, after].concat())?,
            status: status.parse().ok()?,
        })
    }
}

fn decoded(text: &str) -> Option<Vec<u8>> {
    let text: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    LENIENT.decode(text).ok()
}

/// The name of a variable, as shells have them.
fn variable(name: &OsStr) -> Result<&str, String> {
    let is_name = |name: &&str| {
        name.starts_with(|c: char| c == '_' || c.is_ascii_alphabetic())
            && name.chars().all(|c| c == '_' || c.is_ascii_alphanumeric())
    };
    let found = name.to_str().filter(is_name);
    found.ok_or_else(|| format!("`{}` is no name of a variable in a shell", name.to_string_lossy()))
}

/// A word as every shell takes it literally.
fn word(text: &OsStr) -> Result<String, String> {
    let text = text.to_str().ok_or("part of its command line is no text")?;
    if text.contains('\0') {
        return Err("part of its command line has a NUL".to_owned());
    }
    Ok(format!("'{}'", text.replace('\'', r"'\''")))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]
mod tests {
    use std::io::Write as _;
    use std::process::Stdio;

    use super::*;

    const MARK: &str = "talaria0123456789abcdef";

    fn command(words: &[&str], input: &[u8]) -> Command {
        Command {
            program: words[0].into(),
            arguments: words[1..].iter().map(Into::into).collect(),
            environment: Default::default(),
            folder: None,
            input: input.to_vec().into(),
        }
    }

    /// Both streams in one, as text, when all is over.
    fn run(shell: &[&str], wrapped: &Wrapped) -> String {
        let mut child = std::process::Command::new(shell[0])
            .args(&shell[1..])
            .args(["-c", &format!("exec 2>&1\n{}", wrapped.line)])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let input = wrapped.input.clone();
        let writer = std::thread::spawn(move || {
            // A command may end before it has read all.
            let _ = stdin.write_all(input.as_bytes());
        });
        let output = child.wait_with_output().unwrap();
        writer.join().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    fn shells() -> Vec<Vec<&'static str>> {
        let all = [vec!["sh"], vec!["bash"], vec!["dash"], vec!["busybox", "sh"]];
        let is_there = |shell: &Vec<&str>| {
            let path = std::env::var_os("PATH").unwrap_or_default();
            std::env::split_paths(&path).any(|folder| folder.join(shell[0]).exists())
        };
        all.into_iter().filter(is_there).collect()
    }

    #[test]
    fn bytes_pass_both_ways_and_streams_and_status_stay_apart() {
        let bytes: Vec<u8> = (0..=255).cycle().take(300_001).collect();
        let script = "import sys; d = sys.stdin.buffer.read(); sys.stdout.buffer.write(d); sys.stdout.flush(); \
                      sys.stderr.buffer.write(d[::-1] * 2); sys.exit(7)";
        for shell in shells() {
            let wrapped = Wrapped::new(&command(&["python3", "-c", script], &bytes), &[], MARK).unwrap();
            let finished = wrapped.unwrap(&run(&shell, &wrapped)).unwrap();
            assert_eq!(finished.status, 7, "{shell:?}");
            assert!(finished.stdout == bytes, "{shell:?}: {}", finished.stdout.len());
            let reversed: Vec<u8> = bytes.iter().rev().copied().collect();
            assert!(
                finished.stderr == reversed.repeat(2),
                "{shell:?}: {}",
                finished.stderr.len()
            );
        }
    }

    #[test]
    fn ends_folders_variables_and_odd_words() {
        for shell in shells() {
            let finish = |command: &Command, variables: &[(String, String)]| {
                let wrapped = Wrapped::new(command, variables, MARK).unwrap();
                assert!(!wrapped.line.contains("s3cret"));
                let output = run(&shell, &wrapped);
                wrapped.unwrap(&output).unwrap_or_else(|| panic!("{shell:?}: {output}"))
            };
            let missing = finish(&command(&["no-such-program"], b""), &[]);
            assert_eq!(missing.status, 127, "{shell:?}");
            assert!(
                String::from_utf8_lossy(&missing.stderr).contains("not found"),
                "{shell:?}"
            );
            let killed = finish(&command(&["sh", "-c", "kill -9 $$"], b""), &[]);
            assert_eq!(killed.status, 137, "{shell:?}");
            assert_eq!(
                finish(&command(&["true"], &[b'x'; 100_000]), &[]).status,
                0,
                "{shell:?}"
            );
            let mut odd = command(&["printf", "%s|", "it's", "$HOME `x`", "a\nb", "", "<9>|}"], b"");
            let printed = finish(&odd, &[]);
            assert_eq!(printed.stdout, b"it's|$HOME `x`|a\nb||<9>|}|", "{shell:?}");
            odd = command(&["sh", "-c", "pwd; cat; echo \"$A|$B\""], b"in\n");
            odd.folder = Some("/usr".into());
            odd.environment = [("B".into(), "two".into())].into();
            let variables = [("A".to_owned(), "s3cret it's\n1".to_owned())];
            let empty = tempfile::tempdir().unwrap();
            let path = [("PATH".to_owned(), empty.path().display().to_string())];
            let apart = finish(&command(&["/bin/sh", "-c", "echo $PATH; exit 4"], b""), &path);
            assert_eq!(
                apart.stdout,
                format!("{}\n", empty.path().display()).as_bytes(),
                "{shell:?}"
            );
            assert_eq!(apart.status, 4, "{shell:?}");
            let printed = finish(&odd, &variables);
            assert_eq!(printed.stdout, b"/usr\nin\ns3cret it's\n1|two\n", "{shell:?}");
            odd.folder = Some("/no/such/folder".into());
            assert_ne!(finish(&odd, &[]).status, 0, "{shell:?}");
        }
    }

    #[test]
    fn what_stays_behind_does_not_hold_the_command() {
        for shell in shells() {
            let script = "import os, time\nif os.fork() == 0:\n  os.setsid(); n = os.open('/dev/null', 2)\n  \
                          [os.dup2(n, i) for i in range(3)]; time.sleep(20); os._exit(0)\nprint('on')";
            let wrapped = Wrapped::new(&command(&["python3", "-c", script], b""), &[], MARK).unwrap();
            let (give, take) = std::sync::mpsc::channel();
            std::thread::spawn(move || give.send(wrapped.unwrap(&run(&shell, &wrapped))));
            let finished = take.recv_timeout(std::time::Duration::from_secs(10)).unwrap().unwrap();
            assert_eq!((finished.stdout.as_slice(), finished.status), (&b"on\n"[..], 0));
        }
    }

    #[test]
    fn output_that_is_not_whole_is_none() {
        let wrapped = Wrapped::new(&command(&["true"], b""), &[], MARK).unwrap();
        let whole = format!("sh: a warning\n{MARK}{{b24=\n|PDE+<0>\n}}{MARK}\nmore");
        let finished = wrapped.unwrap(&whole).unwrap();
        assert_eq!(
            (finished.stdout.as_slice(), finished.stderr.as_slice(), finished.status),
            (&b"on"[..], &b"<1>"[..], 0)
        );
        for output in [
            "",
            "sh: base64: not found",
            &whole[..whole.len() - 10],
            &whole[20..],
            &whole.replace("<0>", ""),
            &whole.replace("b24=", "b24=%"),
        ] {
            assert_eq!(wrapped.unwrap(output), None, "{output}");
        }
    }

    #[test]
    fn what_cannot_be_sent_is_said() {
        use std::os::unix::ffi::OsStringExt as _;
        let mut odd = command(&["true"], b"");
        odd.arguments = vec![std::ffi::OsString::from_vec(vec![0xff])];
        assert!(Wrapped::new(&odd, &[], MARK).unwrap_err().contains("no text"));
        let variables = [("A=1;x".to_owned(), String::new())];
        assert!(
            Wrapped::new(&command(&["true"], b""), &variables, MARK)
                .unwrap_err()
                .contains("`A=1;x`")
        );
        let long = "x".repeat(LONGEST);
        assert!(
            Wrapped::new(&command(&["true", &long], b""), &[], MARK)
                .unwrap_err()
                .contains("120000")
        );
    }
}
