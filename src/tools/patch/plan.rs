//! From what is asked and the files as they are to the changes of files, and to what is said of them.

use std::collections::HashMap;

use bytes::Bytes;
use serde_json::{Value, json};

use super::diff::Diff;
use super::text::{Edit, Text};
use super::v4a::{Action, Section};
use super::{hunks, replace};
use crate::tools::{Fetched, FetchedFile, FileChange, Splice};

/// What is asked.
#[derive(Debug)]
pub(super) enum Request {
    /// One text for another.
    Replace {
        path: String,
        old: String,
        new: String,
        all: bool,
    },
    /// A patch of several files.
    Patch(Vec<Section>),
}

/// What is to be done.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) changes: Vec<FileChange>,
    diff: Diff,
    modified: Vec<String>,
    created: Vec<String>,
    deleted: Vec<String>,
}

impl Request {
    /// All paths that it needs to know of.
    pub(super) fn paths(&self) -> Vec<String> {
        match self {
            Self::Replace { path, .. } => vec![path.clone()],
            Self::Patch(sections) => {
                let named = |section: &Section| match &section.action {
                    Action::Update { move_to: Some(to), .. } => vec![section.path.clone(), to.clone()],
                    _ => vec![section.path.clone()],
                };
                sections.iter().flat_map(named).collect()
            }
        }
    }

    /// What to do, with the files of [`Request::paths`] as they are.
    ///
    /// # Errors
    /// A sentence that names the file.
    pub(super) fn plan(&self, files: &[Fetched]) -> Result<Plan, String> {
        let mut plan = Plan::default();
        match self {
            Self::Replace { path, old, new, all } => {
                let file = files.first().ok_or("the file was not looked for")?;
                let found = existing(path, file)?;
                let text = decoded(path, found)?;
                let edits = replace::replace(&text.text, old, new, *all).map_err(|why| format!("{path}: {why}"))?;
                plan.edit(path, found, &text, &edits)?;
            }
            Self::Patch(sections) => {
                each_file_once(sections, &self.paths(), files)?;
                no_file_below_another(sections, &self.paths(), files)?;
                let mut files = files.iter();
                for section in sections {
                    plan.section(section, &mut files)?;
                }
            }
        }
        Ok(plan)
    }
}

impl Plan {
    fn section<'f>(&mut self, section: &Section, files: &mut impl Iterator<Item = &'f Fetched>) -> Result<(), String> {
        let path = &section.path;
        let file = files.next().ok_or("a file was not looked for")?;
        let at = |why: String| format!("{why} (line {} of the patch)", section.line);
        match &section.action {
            Action::Add(lines) => {
                let place = absent(path, file).map_err(at)?;
                let text: String = lines.iter().flat_map(|line| [line.as_str(), "\n"]).collect();
                self.diff.created(path, &text);
                self.create(path, place, text.into(), None);
            }
            Action::Delete => {
                if let Some(link) = file.link() {
                    self.unlink(path, file.place(), link);
                    return Ok(());
                }
                let found = existing(path, file).map_err(at)?;
                match Text::decode(&found.content) {
                    Ok(text) => self.diff.deleted(path, &text.text),
                    Err(_) => self.diff.deleted_binary(path),
                }
                self.remove(path, found);
            }
            Action::Update { move_to: None, hunks } => {
                let found = existing(path, file).map_err(at)?;
                let text = decoded(path, found).map_err(at)?;
                let edits = hunks::apply(&text.text, hunks).map_err(|why| format!("{path}: {why}"))?;
                self.edit(path, found, &text, &edits)?;
            }
            Action::Update {
                move_to: Some(to),
                hunks,
            } => {
                let found = existing(path, file).map_err(at)?;
                let target = files.next().ok_or("a file was not looked for")?;
                let place = absent(to, target).map_err(at)?;
                if found.link.is_some() {
                    return Err(at(format!(
                        "{path} is a symlink; move the file that it leads to, or the link with terminal()"
                    )));
                }
                self.rename((path, found), (to, place), hunks)?;
            }
        }
        Ok(())
    }

    fn edit(&mut self, path: &str, found: &FetchedFile, text: &Text<'_>, edits: &[Edit]) -> Result<(), String> {
        let splices = text.splices(edits).map_err(|why| format!("{path}: {why}"))?;
        self.diff.changed(path, path, &text.text, edits);
        self.modified.push(path.to_owned());
        self.changes.push(FileChange::Edit {
            found: found.clone(),
            splices,
        });
        Ok(())
    }

    fn rename(
        &mut self,
        (path, found): (&str, &FetchedFile),
        (to, place): (&str, &Bytes),
        hunks: &[super::v4a::Hunk],
    ) -> Result<(), String> {
        let content = if hunks.is_empty() {
            self.diff.changed(path, to, "", &[]);
            found.content.clone()
        } else {
            let text = decoded(path, found)?;
            let edits = hunks::apply(&text.text, hunks).map_err(|why| format!("{path}: {why}"))?;
            let splices = text.splices(&edits).map_err(|why| format!("{path}: {why}"))?;
            self.diff.changed(path, to, &text.text, &edits);
            spliced(&found.content, &splices)
        };
        self.create(to, place, content, Some(found.place.clone()));
        self.remove(path, found);
        Ok(())
    }

    fn create(&mut self, path: &str, place: &Bytes, content: Bytes, like: Option<Bytes>) {
        self.created.push(path.to_owned());
        self.changes.push(FileChange::Create {
            place: place.clone(),
            content,
            like,
        });
    }

    fn remove(&mut self, path: &str, found: &FetchedFile) {
        self.deleted.push(path.to_owned());
        self.changes.push(FileChange::Remove { found: found.clone() });
    }

    fn unlink(&mut self, path: &str, place: &Bytes, link: &Bytes) {
        self.diff.deleted_link(path, &String::from_utf8_lossy(link));
        self.deleted.push(path.to_owned());
        self.changes.push(FileChange::Unlink {
            place: place.clone(),
            link: link.clone(),
        });
    }

    /// The diff alone.
    pub(super) fn diff(self) -> String {
        self.diff.finish()
    }

    /// The tool's result, once all is done.
    pub(super) fn result(self) -> Value {
        json!({
            "success": true,
            "diff": self.diff.finish(),
            "files_modified": self.modified,
            "files_created": self.created,
            "files_deleted": self.deleted,
        })
    }
}

/// One file in two sections would be changed twice, from the same beginning.
fn each_file_once(sections: &[Section], paths: &[String], files: &[Fetched]) -> Result<(), String> {
    let mut seen: HashMap<&Bytes, (&str, usize)> = HashMap::new();
    for ((path, found), section) in paths.iter().zip(files).zip(of_paths(sections)) {
        let (line, removes) = (section.line, matches!(section.action, Action::Delete));
        // The link goes, not the file that it leads to.
        let is_link = removes && found.link().is_some();
        let file = if is_link { found.place() } else { found.file() };
        if let Some((other, first)) = seen.insert(file, (path, line)) {
            return Err(if first == line {
                format!("{path}: a file cannot be moved to itself (line {line} of the patch)")
            } else {
                format!(
                    "{path} stands twice in the patch, in lines {first} ({other}) and {line}; put all hunks of a file into one section"
                )
            });
        }
    }
    Ok(())
}

/// The section of each path.
fn of_paths(sections: &[Section]) -> impl Iterator<Item = &Section> {
    sections.iter().flat_map(|section| {
        let has_target = matches!(&section.action, Action::Update { move_to: Some(_), .. });
        std::iter::repeat_n(section, 1 + usize::from(has_target))
    })
}

/// What the patch makes as a file cannot be a folder for another.
fn no_file_below_another(sections: &[Section], paths: &[String], files: &[Fetched]) -> Result<(), String> {
    let made: HashMap<&[u8], (&str, usize)> = paths
        .iter()
        .zip(files)
        .zip(of_paths(sections))
        .filter(|(_, section)| !matches!(section.action, Action::Delete))
        .filter_map(|((path, found), section)| match found {
            Fetched::Missing { file, .. } => Some((&file[..], (path.as_str(), section.line))),
            Fetched::File(_) | Fetched::Link { .. } => None,
        })
        .collect();
    for (file, (path, line)) in &made {
        let above = file
            .iter()
            .enumerate()
            .filter(|(_, byte)| **byte == b'/')
            .map(|(at, _)| &file[..at]);
        if let Some((other, first)) = above.filter_map(|folder| made.get(folder)).next() {
            return Err(format!(
                "{path} (line {line} of the patch) would lie in {other}, which is a file of the same patch (line {first}); one of them needs another name"
            ));
        }
    }
    Ok(())
}

fn existing<'f>(path: &str, file: &'f Fetched) -> Result<&'f FetchedFile, String> {
    match file {
        Fetched::File(found) => Ok(found),
        Fetched::Missing { reason, .. } | Fetched::Link { reason, .. } => Err(if reason.contains(path) {
            reason.clone()
        } else {
            format!("{path}: {reason}")
        }),
    }
}

fn absent<'f>(path: &str, file: &'f Fetched) -> Result<&'f Bytes, String> {
    match file {
        Fetched::Missing { place, .. } => Ok(place),
        Fetched::Link { reason, .. } => Err(reason.clone()),
        Fetched::File(_) => Err(format!(
            "{path} exists already; change it with *** Update File, or delete it first in a patch of its own"
        )),
    }
}

fn decoded<'f>(path: &str, found: &'f FetchedFile) -> Result<Text<'f>, String> {
    Text::decode(&found.content).map_err(|kind| {
        format!(
            "{path} is no text but {kind} ({} bytes); change it in Python instead",
            found.content.len()
        )
    })
}

/// The content with its splices.
pub(super) fn spliced(content: &[u8], splices: &[Splice]) -> Bytes {
    let mut result = Vec::with_capacity(content.len());
    let mut at = 0;
    for splice in splices {
        result.extend_from_slice(&content[at..splice.range.start]);
        result.extend_from_slice(&splice.bytes);
        at = splice.range.end;
    }
    result.extend_from_slice(&content[at..]);
    result.into()
}
