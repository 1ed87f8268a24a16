//! What `search_files` asks of a target, and what comes back.

use super::Pattern;

/// A search below a folder, or of one file.
#[derive(Clone, Debug)]
pub struct SearchRequest {
    /// The file or folder as the script gave it.
    pub path: String,
    /// What is looked for.
    pub wanted: Wanted,
    /// Globs as in `.gitignore`, from the folder on: a file must fit one of them, where one stands without `!`, and
    /// none with `!`; the last that fits decides. Checked.
    pub globs: Vec<String>,
    /// Results to leave out at first.
    pub offset: u64,
    /// Results at most.
    pub limit: u64,
}

/// What a search is for.
#[derive(Clone, Debug)]
pub enum Wanted {
    /// Lines in files.
    Lines {
        /// Which.
        pattern: Pattern,
        /// What is told of them.
        told: Told,
        /// Lines before and after each that are told too.
        context: u64,
    },
    /// Files by their names, the newest first: a glob as above.
    Names(String),
}

/// What is told of lines that match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// The lines.
    Lines,
    /// The files that hold one.
    Files,
    /// How many there are in each file.
    Counts,
}

/// What a search found. Paths and lines are as the script sees them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Lines, by path and number.
    pub matches: Vec<FoundLine>,
    /// Files.
    pub files: Vec<String>,
    /// Files with their numbers of matching lines.
    pub counts: Vec<(String, u64)>,
    /// How many there are on all pages: lines (also of `Told::Counts`), or files.
    pub total: u64,
    /// Whether there are more after these.
    pub more: bool,
    /// What could not be searched: a sentence each.
    pub warnings: Vec<String>,
    /// How many more of them there are.
    pub more_warnings: u64,
    /// Files that were searched, or whose names were looked at.
    pub searched: u64,
    /// Files that turned out to be no text.
    pub binary: u64,
    /// Where no file was looked at: one that would have been but for its being hidden or ignored.
    pub passed_over: Option<String>,
    /// The same but for its name, which fits no glob.
    pub misfit: Option<String>,
}

/// A line that matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundLine {
    /// The file.
    pub path: String,
    /// Its number, from 1 on.
    pub line: u64,
    /// Its text, without its end; cut around the match where it is long.
    pub content: String,
    /// Lines before it.
    pub before: Vec<String>,
    /// Lines after it.
    pub after: Vec<String>,
}

/// Results that can be reached: `offset` and `limit` together.
pub(in crate::tools) const MOST_RESULTS: u64 = 1_000_000;
/// Warnings that are told.
pub(in crate::tools) const MOST_WARNINGS: usize = 20;
/// Bytes of results on one page; a result of a tool may have twice as many.
pub(in crate::tools) const PAGE_BYTES: usize = 32 << 20;
/// What a result takes on a page beside its texts.
pub(in crate::tools) const RESULT_BYTES: usize = 64;
/// Characters of a line that are told.
pub(in crate::tools) const LINE_CHARACTERS: usize = 2000;
/// Of which so many before the match.
pub(in crate::tools) const LEAD_CHARACTERS: usize = 500;
/// The longest line that is searched, in bytes.
pub(in crate::tools) const LONGEST_LINE: usize = 256 << 20;
