//! The lines that say what was left out.

use std::path::PathBuf;

/// What became of the text that an outcome does not show.
#[derive(Debug)]
pub(super) enum Kept {
    /// All of it is in the file.
    Whole(PathBuf),
    /// The file holds the first `bytes` of it, for the `reason` given.
    Beginning { path: PathBuf, bytes: u64, reason: String },
    /// There is no file, for the reason given.
    Nothing(String),
}

impl Kept {
    /// The file, if there is one.
    pub(super) fn into_path(self) -> Option<PathBuf> {
        match self {
            Self::Whole(path) | Self::Beginning { path, .. } => Some(path),
            Self::Nothing(_) => None,
        }
    }
}

/// Head and tail with a line between them that says how much is missing and, for a stream that is
/// kept, where it is.
pub(super) fn join(head: &str, tail: &str, omitted: u64, kept: Option<&Kept>) -> String {
    let omitted = grouped(omitted);
    let place = match kept {
        None => String::new(),
        Some(Kept::Whole(path)) => format!("; all of it is in {}, page through it with read_file", path.display()),
        Some(Kept::Beginning { path, bytes, reason }) => format!(
            "; the first {} bytes of the text are in {}, page through it with read_file ({reason})",
            grouped(*bytes),
            path.display()
        ),
        Some(Kept::Nothing(reason)) => format!("; they could not be kept: {reason}"),
    };
    // One line, whatever a path or an error of the system holds.
    let place = place.replace(['\n', '\r'], " ");
    let start = line_break_after(head);
    format!("{head}{start}[… {omitted} bytes left out{place} …]\n{tail}")
}

/// The line that a live stream shows where bytes were lost.
pub(super) fn lost(omitted: u64) -> String {
    format!("\n[… {} bytes left out …]\n", grouped(omitted))
}

/// The last line of a file that does not hold everything.
pub(super) fn end_of_spill(cap: u64) -> String {
    format!(
        "\n[… this file ends here: no more than {} bytes of output are kept (max_spill_bytes) …]\n",
        grouped(cap)
    )
}

fn line_break_after(head: &str) -> &'static str {
    if head.is_empty() || head.ends_with('\n') {
        ""
    } else {
        "\n"
    }
}

/// A number with a comma after every third digit.
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped() {
        let cases = [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (123_456, "123,456"),
            (67_108_864, "67,108,864"),
        ];
        for (number, expected) in cases {
            assert_eq!(grouped(number), expected);
        }
    }

    #[test]
    fn the_marker_is_a_line_of_its_own() {
        let kept = Kept::Whole("/c/stdout-1.txt".into());
        assert_eq!(
            join("a", "b", 1234, Some(&kept)),
            "a\n[… 1,234 bytes left out; all of it is in /c/stdout-1.txt, \
             page through it with read_file …]\nb"
        );
        assert_eq!(join("a\n", "", 5, None), "a\n[… 5 bytes left out …]\n");
        let nothing = Kept::Nothing("disk\nfull".to_owned());
        assert_eq!(
            join("", "z", 7, Some(&nothing)),
            "[… 7 bytes left out; they could not be kept: disk full …]\nz"
        );
    }
}
