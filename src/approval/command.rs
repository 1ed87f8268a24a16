//! Shell text, as far as rules need to understand it.
//!
//! Only text is taken apart of which it is certain what the shell makes of it: words, quotes, and the signs that stand
//! between commands. What is anything else is not guessed at.

/// What can be said of a command.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Reading {
    /// Its simple commands, in words, where it consists of nothing else; `None`: it is not certain what it runs.
    pub(super) certain: Option<Vec<Vec<String>>>,
    /// Whatever in it looks like a command. Good enough to find what is forbidden, not to allow anything.
    pub(super) likely: Vec<Vec<String>>,
}

/// Words of the shell's own that begin something else than a simple command.
const RESERVED: [&str; 21] = [
    "!", "[[", "case", "coproc", "do", "done", "elif", "else", "esac", "fi", "for", "function", "if", "in", "select",
    "then", "time", "until", "while", "{", "}",
];
/// Programs that run what their arguments say.
const RUNNERS: [&str; 50] = [
    ".", "ash", "bash", "builtin", "busybox", "chroot", "chrt", "command", "coproc", "csh", "dash", "doas", "env",
    "eval", "exec", "find", "fish", "flock", "ionice", "ksh", "ltrace", "nice", "nohup", "nsenter", "parallel", "perl",
    "python", "python3", "rsync", "runuser", "script", "setpriv", "setsid", "sh", "source", "ssh", "stdbuf", "strace",
    "su", "sudo", "taskset", "time", "timeout", "trap", "unshare", "unbuffer", "watch", "xargs", "xvfb-run", "zsh",
];
/// How deep texts within texts are looked at.
const DEPTH: usize = 4;

/// Reads a command.
pub(super) fn read(text: &str) -> Reading {
    let mut likely = Vec::new();
    guess(text, 0, &mut likely);
    Reading {
        certain: certain(text),
        likely,
    }
}

/// The words of a rule: the beginning of one simple command.
pub(super) fn prefix(text: &str) -> Option<Vec<String>> {
    let mut commands = certain(text)?;
    match (commands.pop(), commands.is_empty()) {
        (Some(words), true) => Some(words),
        _ => None,
    }
}

/// Whether the words begin like that.
pub(super) fn begins(words: &[String], prefix: &[String]) -> bool {
    words.starts_with(prefix)
}

/// Whether words that look like a command may run one that begins like that: under its own name or with its path, also
/// by way of a program that runs others.
pub(super) fn may_run(words: &[String], prefix: &[String]) -> bool {
    let here = |words: &[String]| {
        let (Some((first, rest)), Some((wanted, others))) = (words.split_first(), prefix.split_first()) else {
            return false;
        };
        (first == wanted || base(first) == wanted) && rest.starts_with(others)
    };
    here(words) || (is_runner(words) && (1..words.len()).any(|at| here(&words[at..])))
}

fn base(word: &str) -> &str {
    word.rsplit('/').next().unwrap_or(word)
}

fn is_runner(words: &[String]) -> bool {
    words.first().is_some_and(|word| RUNNERS.contains(&base(word)))
}

/// The simple commands of a text, if it has nothing but these.
fn certain(text: &str) -> Option<Vec<Vec<String>>> {
    let mut commands = Vec::new();
    for piece in pieces(text)? {
        if piece.trim_matches([' ', '\t']).is_empty() {
            continue;
        }
        let words = shell_words::split(piece).ok()?;
        let first = words.first()?;
        // An assignment before a command changes what it does; a pattern may stand for any name.
        if RESERVED.contains(&first.as_str()) || first.is_empty() || first.contains(['=', '*', '?', '[', ']', '~']) {
            return None;
        }
        commands.push(words);
    }
    (!commands.is_empty()).then_some(commands)
}

/// The text between the signs that separate commands; `None` where anything stands in it that is more than words.
fn pieces(text: &str) -> Option<Vec<&str>> {
    let mut pieces = Vec::new();
    let mut start = 0;
    let mut quote = None;
    let mut chars = text.char_indices();
    while let Some((at, char)) = chars.next() {
        match (quote, char) {
            (Some('\''), '\'') | (Some('"'), '"') => quote = None,
            (Some('\''), '\0') => return None,
            (Some('\''), _) => {}
            (_, '\\') => {
                // What continues a line vanishes, and might join what looks apart.
                let (_, escaped) = chars.next()?;
                if escaped == '\n' || escaped == '\r' {
                    return None;
                }
            }
            (_, '$' | '`' | '\0') => return None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(char),
            (None, ';' | '|' | '&' | '\n') => {
                pieces.push(&text[start..at]);
                start = at + char.len_utf8();
            }
            (None, '(' | ')' | '<' | '>' | '{' | '}' | '#' | '!') => return None,
            (None, '\t') => {}
            (None, char) if char.is_control() || (char.is_whitespace() && char != ' ') => return None,
            (None, _) => {}
        }
    }
    if quote.is_some() {
        return None;
    }
    pieces.push(&text[start..]);
    Some(pieces)
}

/// Whatever looks like a command in a text, and in the texts that its commands run.
fn guess(text: &str, depth: usize, found: &mut Vec<Vec<String>>) {
    let joined = text.replace("\\\n", "");
    for piece in rough_pieces(&joined) {
        // Quotes that do not match, as in a text that was cut apart: without them.
        let words = shell_words::split(&piece).unwrap_or_else(|_| {
            piece
                .split_whitespace()
                .map(|word| word.replace(['\'', '"', '\\'], ""))
                .collect()
        });
        let skip = |word: &String| RESERVED.contains(&word.as_str()) || is_assignment(word);
        let words: Vec<String> = words.into_iter().skip_while(skip).collect();
        if words.is_empty() {
            continue;
        }
        if depth < DEPTH && is_runner(&words) {
            for word in words
                .iter()
                .filter(|word| word.contains(char::is_whitespace) || word.contains(';'))
            {
                guess(word, depth + 1, found);
            }
        }
        found.push(words);
    }
    // What is quoted may be a command too: "$(rm x)".
    if depth < DEPTH {
        for inner in substituted(&joined) {
            guess(inner, depth + 1, found);
        }
    }
}

/// `NAME=`, as it may stand before a command.
fn is_assignment(word: &str) -> bool {
    word.split_once('=').is_some_and(|(name, _)| {
        let name = name.trim_end_matches('+');
        !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || "_[]".contains(c))
    })
}

/// The text in pieces, at every sign that may begin a command and is not quoted.
fn rough_pieces(text: &str) -> Vec<String> {
    let mut pieces = vec![String::new()];
    let mut quote = None;
    let mut chars = text.chars();
    while let Some(char) = chars.next() {
        let cuts = match (quote, char) {
            (Some(open), char) if open == char => {
                quote = None;
                false
            }
            (Some('\''), _) => false,
            (_, '\\') => {
                if let Some(last) = pieces.last_mut() {
                    last.push(char);
                    last.extend(chars.next());
                }
                continue;
            }
            (None, '\'' | '"') => {
                quote = Some(char);
                false
            }
            (None, ';' | '|' | '&' | '\n' | '(' | ')' | '{' | '}' | '`' | '<' | '>') => true,
            _ => false,
        };
        match pieces.last_mut() {
            Some(last) if !cuts => last.push(char),
            _ => pieces.push(String::new()),
        }
    }
    pieces
}

/// What stands behind `$(` and between backquotes, up to the end of the text.
fn substituted(text: &str) -> impl Iterator<Item = &str> {
    text.match_indices("$(")
        .map(|(at, _)| &text[at + 2..])
        .chain(text.match_indices('`').map(|(at, _)| &text[at + 1..]))
        .take(64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn what_is_certain() {
        for (text, expected) in [
            ("ls", vec!["ls"]),
            ("git status -s", vec!["git status -s"]),
            ("  ls\t-l  ", vec!["ls -l"]),
            (
                "ls; pwd && id || true | wc -l & date",
                vec!["ls", "pwd", "id", "true", "wc -l", "date"],
            ),
            ("ls\npwd\n", vec!["ls", "pwd"]),
            ("'l's \"-l\"", vec!["ls -l"]),
            ("ls *.py", vec!["ls *.py"]),
            (r"l\s", vec!["ls"]),
            ("grep '$x' f", vec!["grep $x f"]),
            ("git diff HEAD^ a=b ~/x", vec!["git diff HEAD^ a=b ~/x"]),
            (r#"echo "\$x""#, vec!["echo $x"]),
        ] {
            let expected: Vec<Vec<String>> = expected.into_iter().map(words).collect();
            assert_eq!(certain(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn what_is_not() {
        for text in [
            "",
            " ; ",
            "ls $(rm x)",
            "ls `rm x`",
            "ls \"$(rm x)\"",
            "ls \"`rm x`\"",
            "ls $X",
            "ls ${X}",
            "ls > x",
            "ls < x",
            "ls 2>&1",
            "cat <<E\nrm\nE",
            "ls <(rm x)",
            "(rm x)",
            "{ rm x; }",
            "X=1 ls",
            "PATH=/tmp ls",
            "A+=1 ls",
            "if ls; then rm x; fi",
            "! ls",
            "time ls",
            "ls # rm",
            "ls \\\n-l",
            "l\\\ns",
            "/bin/l? x",
            "~/ls",
            "ls 'x",
            "ls \"x",
            "ls \\",
            "ls\r\nrm x",
            "ls\u{b}x",
            "ls\u{0}x",
            "ls\u{a0}x",
            "ls\u{2028}rm",
            "'' x",
            "$'rm' x",
            "f() { rm x; }; f",
            "[[ -f x ]] && ls",
            "!!",
        ] {
            assert_eq!(certain(text), None, "{text:?}");
        }
    }

    #[test]
    fn what_is_forbidden_is_found_wherever_it_hides() {
        let rule = words("rm -rf");
        for text in [
            "rm -rf /",
            "ls; rm -rf /",
            "ls && rm -rf /",
            "ls\nrm -rf /",
            "ls | rm -rf /",
            "ls & rm -rf /",
            "/bin/rm -rf /",
            "\\rm -rf /",
            "'rm' \"-rf\" /",
            "r'm' -rf /",
            "X=1 rm -rf /",
            "if true; then rm -rf /; fi",
            "! rm -rf /",
            "(rm -rf /)",
            "{ rm -rf /; }",
            "echo $(rm -rf /)",
            "echo \"$(rm -rf /)\"",
            "echo `rm -rf /`",
            "echo \"`rm -rf /`\"",
            "sudo rm -rf /",
            "sudo -n /bin/rm -rf /",
            "env A=1 rm -rf /",
            "nohup rm -rf / &",
            "timeout 5 rm -rf /",
            "xargs rm -rf",
            "find . -exec rm -rf {} +",
            "sh -c 'rm -rf /'",
            "bash -lc \"rm -rf /\"",
            "sudo sh -c 'ls; rm -rf /'",
            "eval 'rm -rf /'",
            "eval rm -rf /",
            "ssh host 'rm -rf /'",
            "rm \\\n-rf /",
            "f() { rm -rf /; }; f",
            "cat <(rm -rf /)",
            "ls > x; rm -rf /",
            "rm -rf / > /dev/null",
        ] {
            let likely = read(text).likely;
            assert!(likely.iter().any(|words| may_run(words, &rule)), "{text:?}: {likely:?}");
        }
        for text in [
            "ls",
            "git rm -rf x",
            "echo rm -rf",
            "rm x",
            "grep 'rm -rf' f",
            "rmdir -rf",
        ] {
            let likely = read(text).likely;
            assert!(
                !likely.iter().any(|words| may_run(words, &rule)),
                "{text:?}: {likely:?}"
            );
        }
    }

    #[test]
    fn a_rule_is_the_beginning_of_one_command() {
        assert_eq!(prefix("git status"), Some(words("git status")));
        for text in ["", "ls; pwd", "ls | wc", "$X", "A=1 ls", "ls >", "*"] {
            assert_eq!(prefix(text), None, "{text:?}");
        }
    }
}
